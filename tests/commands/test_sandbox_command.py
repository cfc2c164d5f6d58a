from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest

from finqa_cli.app import main
from finqa_cli.contracts import SandboxProvider
from finqa_cli.diagnostics import sandbox_listing
from finqa_cli.errors import SandboxError
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import SandboxInfo
from finqa_cli.wiring import sandbox_owners
from finqa_cli.wiring.sandbox_owners import HOST_LABEL, PID_LABEL, offer_strays, owner_labels, owner_state

pytestmark = pytest.mark.usefixtures("empty_folder")


def ended_pid() -> int:
    """The pid of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


class MemoryProvider(SandboxProvider):
    """Sandboxes in a dictionary: `stuck` cannot be ended."""

    def __init__(self) -> None:
        now = time.time()
        self.sandboxes = {
            name: SandboxInfo(id=name, state="started", labels={"finqa.run": run}, created=now - age)
            for name, run, age in (("old", "one", 7200.0), ("young", "one", 60.0), ("other", "two", 10.0))
        }
        self.opened = self.closed = 0

    async def start(self, spec: object, labels: object) -> NoReturn:
        raise AssertionError("no command here starts a sandbox")

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        return [sandbox for sandbox in self.sandboxes.values() if labels.items() <= sandbox.labels.items()]

    async def reap(self, sandbox_id: str) -> None:
        if sandbox_id == "stuck":
            raise SandboxError("no answer")
        self.sandboxes.pop(sandbox_id, None)

    async def close(self) -> None:
        self.closed += 1

    def add(self, name: str, labels: Mapping[str, str]) -> None:
        self.sandboxes[name] = SandboxInfo(id=name, state="started", labels=labels, created=time.time())

    def add_owned(self) -> None:
        """One sandbox of each kind of owner."""
        mine = owner_labels("run")
        self.add("used", mine)
        self.add("left", {**mine, PID_LABEL: f"{ended_pid()}:1"})
        self.add("reused", {**mine, PID_LABEL: mine[PID_LABEL].partition(":")[0] + ":1"})
        self.add("far", {**mine, HOST_LABEL: "elsewhere-000000", PID_LABEL: "1:1"})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> MemoryProvider:
    made = MemoryProvider()

    def make(settings: object) -> MemoryProvider:
        made.opened += 1
        return made

    monkeypatch.setattr(sandbox_listing, "make_provider", make)
    return made


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["sandbox", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_sandboxes_are_listed_oldest_first(provider: MemoryProvider, capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(["ls"], capsys)
    assert shown["provider"] == "local" and [sandbox["id"] for sandbox in shown["sandboxes"]] == [
        "old",
        "young",
        "other",
    ]
    assert [sandbox["id"] for sandbox in document(["ls", "--run", "two"], capsys)["sandboxes"]] == ["other"]
    assert main(["sandbox", "ls"]) == 0
    assert "2 h" in capsys.readouterr().out and provider.closed == provider.opened


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--all"], ["old", "young", "other"]),
        (["--run", "one"], ["old", "young"]),
        (["--older-than", "1h"], ["old"]),
        (["--older-than", "30s"], ["old", "young"]),
        (["--run", "one", "--older-than", "1h"], ["old"]),
        (["young", "other"], ["young", "other"]),
    ],
)
def test_just_the_selected_sandboxes_are_ended(
    arguments: list[str], expected: list[str], provider: MemoryProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(provider.sandboxes)
    dry = document(["reap", *arguments, "--dry-run"], capsys)
    assert [sandbox["id"] for sandbox in dry["reaped"]] == expected and set(provider.sandboxes) == before
    assert [sandbox["id"] for sandbox in document(["reap", *arguments], capsys)["reaped"]] == expected
    assert set(provider.sandboxes) == before - set(expected) and provider.closed == provider.opened


def test_an_unknown_id_ends_nothing(provider: MemoryProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "reap", "old", "missing"]) == 1
    assert "There is no sandbox missing" in capsys.readouterr().err and "old" in provider.sandboxes


def test_a_sandbox_that_cannot_be_ended_does_not_keep_the_others(
    provider: MemoryProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.sandboxes["stuck"] = SandboxInfo(id="stuck", state="error", labels={}, created=time.time())
    assert main(["sandbox", "reap", "--all"]) == 69
    assert "1 of 4 sandboxes could not be removed; the first is stuck: no answer" in capsys.readouterr().err
    assert set(provider.sandboxes) == {"stuck"} and provider.closed == provider.opened


def test_owners_are_told_apart() -> None:
    mine = owner_labels("run")
    assert mine["finqa.run"] == "run" and abs(int(mine["finqa.created"]) - time.time()) < 60
    assert owner_state(mine) == "alive"
    assert owner_state({**mine, PID_LABEL: f"{ended_pid()}:7"}) == "gone"
    assert owner_state({**mine, HOST_LABEL: "another"}) == "elsewhere"
    for labels in (
        {},
        {"finqa.run": "x"},
        {**mine, PID_LABEL: ""},
        {**mine, PID_LABEL: "12"},
        {**mine, PID_LABEL: "a:b"},
    ):
        assert owner_state(labels) == "unknown"


def test_the_list_says_whose_each_sandbox_is(provider: MemoryProvider, capsys: pytest.CaptureFixture[str]) -> None:
    provider.add_owned()
    owners = {sandbox["id"]: sandbox["owner"] for sandbox in document(["ls", "--run", "run"], capsys)["sandboxes"]}
    assert owners == {"used": "alive", "left": "gone", "reused": "gone", "far": "elsewhere"}
    assert main(["sandbox", "ls", "--run", "run", "--sandbox", "local"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["sandbox", "state", "age", "run", "owner"]
    assert any(line.startswith("far ") and line.endswith(" elsewhere-000000") for line in lines)
    assert lines[-1] == "4 local sandboxes, 2 left behind: finqa sandbox reap --sandbox local"


def test_without_a_choice_only_what_ended_processes_of_this_machine_left_is_ended(
    provider: MemoryProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sandbox", "reap"]) == 0
    assert (
        capsys.readouterr().out == "No local sandbox to remove. List all: finqa sandbox ls --sandbox local\n"
        and len(provider.sandboxes) == 3
    )
    provider.add_owned()
    assert main(["sandbox", "reap", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("Would end 2 local sandboxes.\n") and "\nleft " in shown and "\nused " not in shown
    assert main(["sandbox", "reap"]) == 0
    assert capsys.readouterr().out == "Ended 2 local sandboxes.\n"
    assert set(provider.sandboxes) == {"old", "young", "other", "used", "far"}


@pytest.mark.parametrize(("answer", "flags", "ended"), [("n\n", [], False), ("y\n", [], True), ("", ["--yes"], True)])
def test_on_a_terminal_sandboxes_in_use_are_ended_after_a_yes(
    answer: str, flags: list[str], ended: bool, provider: MemoryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.add_owned()
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["sandbox", "reap", "--run", "run", *flags]) == 0
    assert ("used" not in provider.sandboxes) is ended
    assert ("1 of 4 sandboxes is in use. Remove them?" in screen.getvalue()) is not flags


class Lines(NullReporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


async def test_strays_are_offered_at_the_next_start() -> None:
    provider, reporter = MemoryProvider(), Lines()
    await offer_strays(provider, reporter)
    assert reporter.said == []
    provider.add_owned()
    await offer_strays(provider, reporter, "daytona")
    assert reporter.said == ["2 sandboxes of ended runs are left: finqa sandbox reap --sandbox daytona"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_looking_for_strays_never_keeps_a_run_from_starting(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(MemoryProvider):
        async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
            await asyncio.sleep(60 if hangs else 0)
            raise ValueError("a bug in a plugin")

    monkeypatch.setattr(sandbox_owners, "OFFER_TIMEOUT_S", 0.05)
    reporter = Lines()
    started = time.monotonic()
    await offer_strays(Unreachable(), reporter)
    assert reporter.said == [] and time.monotonic() - started < 30
