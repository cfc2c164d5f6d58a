"""A name that is no folder is asked of the hub once, before anything that would go on asking."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fixtures.command_calls import failure
from fixtures.reserved_ports import reserved_port

from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.policies import check_on_hub

hub = pytest.importorskip("huggingface_hub.constants", reason="needs finqa[data]")

NAMED = PolicyVersion(number=0, model="some/model")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A hub that cannot be reached."""
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with reserved_port() as port:
        point_to(monkeypatch, f"http://127.0.0.1:{port}")
        yield


def point_to(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@contextmanager
def answering(status: int, code: str) -> Iterator[tuple[str, list[str]]]:
    """A hub with one answer, below a path that no client of another test knows, and the paths it was asked for."""
    root = f"/{secrets.token_hex(8)}"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if not self.path.startswith(f"{root}/"):  # a late client of a server that had this port before
                self.send_error(404)
                return
            asked.append(self.path.removeprefix(root))
            self.send_response(status)
            for name, value in {"X-Repo-Commit": "0" * 40, "ETag": '"1"', "X-Error-Code": code}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None: ...

    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{root}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "error", "reason"),
    [
        (200, "", None, ""),
        (404, "EntryNotFound", None, ""),  # what it lacks is the loader's to say
        (503, "", None, ""),
        (404, "RepoNotFound", ConfigError, "'some/model' here, and the hub has no model with this"),
        (401, "GatedRepo", AuthenticationError, "accepted its licence"),
    ],
)
def test_the_hub_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, error: type[Exception] | None, reason: str
) -> None:
    with answering(status, code) as (endpoint, asked):
        point_to(monkeypatch, endpoint)
        if error is None:
            check_on_hub(NAMED)
        else:
            with pytest.raises(error, match=reason):
                check_on_hub(NAMED)
    assert asked == ["/some/model/resolve/main/config.json"]


def test_what_is_here_is_not_asked_for(tmp_path: Path) -> None:
    check_on_hub(PolicyVersion(number=0, model=str(tmp_path)))
    check_on_hub(PolicyVersion(number=0, model=""))  # of an engine that takes none
    with pytest.raises(ServiceUnavailableError, match="cannot be reached"):
        check_on_hub(NAMED)
    with pytest.raises(ServiceUnavailableError, match=r"model 'embeded' here \(did you mean 'embedded'\?\), and"):
        check_on_hub(PolicyVersion(number=0, model="embeded"))
    snapshot = tmp_path / "cache/models--some--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("abc")
    check_on_hub(NAMED)


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    "command",
    [
        "export nope --to=merged",
        "export nope --to=peft",
        "push nope --repo-prefix=me/x",
        "eval nope --environment=forecast",
        "train --model=nope --environment=forecast --run-dir=r",
    ],
)
def test_a_mistyped_name_is_told_with_what_to_give_instead(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = failure([*command.split(), "-q"], capsys)
    assert status == 69 and "There is no run, checkpoint or model 'nope' here" in told
    assert "fix: give a run folder, a checkpoint" in told and "--model" not in told
    assert not list(Path.cwd().glob("[er]*")), "a mistake leaves nothing"


@pytest.mark.usefixtures("empty_folder")
def test_offline_the_hub_is_not_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    status, told = failure(["export", "no way", "--to=merged", "-q"], capsys)
    assert status == 78 and "'no way' here, and the hub has no model with this" in told  # no id of the hub has a space
    status, told = failure(["export", "nope", "--to=merged", "-q"], capsys)
    assert status == 78 and "HF_HUB_OFFLINE disables" in told


def test_a_mistyped_name_says_what_was_meant() -> None:
    for typed, meant in (("embeded", "embedded"), ("scriptd", "scripted")):
        with pytest.raises(ServiceUnavailableError, match=rf"'{typed}' here \(did you mean '{meant}'\?\)"):
            check_on_hub(PolicyVersion(number=0, model=typed))
