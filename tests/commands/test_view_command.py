"""`finqa view` as a process: its address, its end, the browser that it opens, and requests as they are on the wire."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.command_calls import failure
from fixtures.report_runs import attempt, evaluated, training, write_run
from fixtures.view_server import COMMAND, ViewServer, view_server
from fixtures.warm_commands import VIEW

from finqa_cli.commands.recorded.view_runs import shows_browser
from finqa_cli.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("_warm_commands", "empty_folder")
PRELOADED = VIEW


def wait_until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def raw(server: ViewServer, request: str) -> str:
    """The answer to bytes that no client library would send."""
    host, port = server.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request.encode("latin-1"))
        found = b""
        while block := connection.recv(65536):
            found += block
    return found.decode("latin-1")


def test_runs_are_served_by_the_address_that_is_printed() -> None:
    training(Path("runs/one"), steps=1)
    with view_server() as server:
        assert server.client.get(server.url).status_code == 200
        assert server.client.get(server.origin).status_code == 403
        assert list(server.ids()) == ["one"]
        assert server.client.get(server.url.replace("127.0.0.1", "localhost")).status_code == 200


def test_one_run_opens_with_its_page_and_two_with_their_comparison() -> None:
    for name in ("one", "two"):
        write_run(Path("runs") / name, [("eval", 0, attempt("a_1"))])
    with view_server("one") as server:
        assert server.url.endswith(f"/run/{server.ids()['one']}") and server.client.get(server.url).status_code == 200
    with view_server("runs/one", "runs/two") as server:
        ids = server.ids()
        assert server.url.endswith(f"/compare/{ids['one']}/{ids['two']}")
    with view_server("runs", "runs/two") as server:
        assert server.url == server.root


def test_a_run_opens_with_its_control(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(Path("runs/one")), evaluated(Path("runs/control"), shuffled=True), evaluated(Path("runs/true"))
    with view_server("one", arguments=["--control", "runs/control"]) as server:
        ids = server.ids()
        assert server.url.endswith(f"/run/{ids['one']}/control/{ids['control']}")
        assert server.client.get(server.url).status_code == 200
    for arguments, status, reason in (
        (["one", "--control", "true"], 78, "was trained on the true rewards"),
        (["--control", "control"], 2, "needs exactly one run"),
        (["one", "true", "--control", "control"], 2, "fix: finqa view RUN --control control"),
        (["one", "--control", "nowhere"], 65, "nowhere"),
    ):
        found, text = failure(["view", *arguments], capsys)
        assert found == status and reason in text


def test_paths_on_the_wire_lead_nowhere() -> None:
    training(Path("runs/one"), steps=1)
    Path("secret.txt").write_text("the secret")
    with view_server() as server:
        token, host = server.root.rsplit("/", 2)[1], server.origin.removeprefix("http://")
        for path in (
            *("run/../../secret.txt", "../secret.txt", "data/report/../../../secret.txt", "run/..", "//etc/passwd"),
            *("%2e%2e/secret.txt", "data/report/..%2f..%2fsecret.txt", "run/..\\..\\secret.txt", "data/report/\x00"),
            *("data/report/one", "data/episode/../one/1"),
        ):
            found = raw(server, f"GET /{token}/{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            assert found.split()[1] in ("404", "400"), (path, found)
            assert "secret" not in found and "root:" not in found
        for head in (f"Host: {host}\r\nHost: evil.example", "X: y", "Host: evil.example", f"Host: {host}."):
            found = raw(server, f"GET /{token}/data/runs HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n")
            assert found.split()[1] in ("400", "421") and '"runs"' not in found
        found = raw(server, f"GET http://evil.example/{token}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert found.split()[1] in ("400", "403", "404")
        for method in ("POST", "get", "PROPFIND"):
            found = raw(server, f"{method} /{token}/data/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            assert found.split()[1] == "405"


def test_nobody_else_reaches_the_port() -> None:
    training(Path("runs/one"), steps=1)
    with view_server() as server:
        port = int(server.origin.rsplit(":", 1)[1])
        hexadecimal = f"{port:04X}"
        lines = [
            line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        listening = {line[1] for line in lines if line[1].endswith(f":{hexadecimal}") and line[3] == "0A"}
        assert listening == {f"0100007F:{hexadecimal}"}


def test_what_is_appended_arrives_and_a_killed_run_has_crashed() -> None:
    training(Path("runs/one"), steps=1)
    settings = {"optimizer": {"name": "grpo", "options": {}}}
    with (
        view_server() as server,
        RunFolder.create(Path("runs/two"), command="eval", settings=settings, save_token_ids=False) as run,
    ):
        wait_until(lambda: "two" in server.ids())
        identity = server.ids()["two"]
        version, stamp = "", ""
        for at in range(5):
            run.trajectory(attempt(f"q{at}_x", reward=float(at % 2)), phase="eval", iteration=0).result()
            assert server.data(f"stamp/{identity}")["stamp"] != stamp
            found = server.data(f"report/{identity}?since={version}")
            version, stamp = found["runs"][0]["version"], found["stamp"]
            assert len(found["runs"][0]["rows"]) == 1 and found["runs"][0]["full"] == (at == 0)
            assert server.data(f"episode/{identity}/{at + 1}")["messages"][1]["text"] == f"Question: q{at}_x"
        head = server.data(f"report/{identity}")["runs"][0]["head"]
        assert head["status"] == "running" and head["score"]["attempts"] == 5
        facts = json.loads((run.path / "run.json").read_text())
        (run.path / "run.json").write_text(json.dumps({**facts, "pid_started": 1}))  # as if the process were gone
        found = server.data(f"report/{identity}?since={version}")
        assert found["runs"][0]["head"]["status"] == "crashed" and found["stamp"] != stamp


def test_a_browser_that_goes_away_leaves_no_words() -> None:
    training(Path("runs/one"), steps=20, questions=10)
    with view_server() as server:
        identity = server.ids()["one"]
        host, port = server.origin.removeprefix("http://").split(":")
        token = server.root.rsplit("/", 2)[1]
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                path = f"/{token}/data/report/{identity}"
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        assert len(server.data(f"report/{identity}")["runs"][0]["rows"]) == 800
    # the fixture has seen that nothing was written to stderr


def test_ctrl_c_ends_it_at_once_also_while_a_connection_is_open() -> None:
    training(Path("runs/one"), steps=1)
    with view_server() as server:
        assert server.data("runs")
        begun = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - begun < 3


def test_sigterm_has_its_own_status() -> None:
    Path("runs").mkdir()
    with subprocess.Popen([*COMMAND, "--no-browser"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline().startswith("View: ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143


def test_the_browser_gets_an_address_that_works_once(tmp_path: Path) -> None:
    training(Path("runs/one"), steps=1)
    note = tmp_path / "opened"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {note}.new; mv {note}.new {note}\n')
    script.chmod(0o755)
    controller, terminal = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = {**variables, "DISPLAY": ":99", "BROWSER": f"{script} %s"}
    process = subprocess.Popen([*COMMAND], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    try:
        wait_until(note.exists)
        text = os.read(controller, 4096).decode()
        url = text.split()[1]
        opened = note.read_text()
        assert opened.startswith(url[: url.index("/", 7)] + "/open/") and url.split("/")[3] not in opened
        import httpx

        with httpx.Client(trust_env=False) as client:
            answer = client.get(opened)
            assert answer.status_code == 303 and answer.headers["location"] == url[url.index("/", 7) :]
            assert client.get(opened).status_code == 403
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        os.close(controller)


@pytest.mark.parametrize(
    ("environment", "terminal", "platform", "wanted"),
    [
        ({"DISPLAY": ":0"}, True, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True, "linux", True),
        ({}, True, "linux", False),
        ({"DISPLAY": ":0"}, False, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, True, "linux", False),
        ({"DISPLAY": ":0", "CI": "false"}, True, "linux", True),
        ({}, True, "darwin", True),
        ({"CI": "1"}, True, "darwin", False),
    ],
)
def test_a_browser_is_expected_where_there_is_a_person(
    environment: dict[str, str], terminal: bool, platform: str, wanted: bool
) -> None:
    assert shows_browser(environment, terminal=terminal, platform=platform) == wanted


def test_json_is_one_document_and_opens_nothing() -> None:
    training(Path("runs/one"), steps=1)
    with subprocess.Popen([*COMMAND, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        found = json.loads("".join(lines))
        assert found["url"].startswith("http://127.0.0.1:") and found["runs"] == ["runs"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0 and process.stdout.read() == ""


def test_what_cannot_be_viewed_is_refused_with_a_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, text = failure(["view"], capsys)
    assert status == 65 and "fix: finqa view FOLDER" in text
    Path("runs").mkdir()
    status, text = failure(["view", "nowhere"], capsys)
    assert status == 65 and "nowhere" in text
    assert failure(["view", "runs", "./runs"], capsys)[0] == 2
    assert failure(["view", "--port", "65536"], capsys)[0] == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, text = failure(["view", "--port", str(port), "--no-browser"], capsys)
        assert status == 78 and f"Port {port}" in text and "fix: --port 0" in text
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, text = failure(["view"], capsys)
    assert status == 78 and "pip install 'finqa[view]'" in text
