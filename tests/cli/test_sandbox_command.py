from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from finqa_cli.app import main
from finqa_cli.errors import SandboxError
from finqa_cli.types import SandboxInfo
from finqa_cli.workflows import sandboxes

pytestmark = pytest.mark.usefixtures("empty_folder")


class MemoryProvider:
    """Boxes in a dictionary: `stuck` cannot be ended."""

    def __init__(self) -> None:
        now = time.time()
        self.boxes = {
            name: SandboxInfo(id=name, state="started", labels={"finqa.run": run}, created=now - age)
            for name, run, age in (("old", "one", 7200.0), ("young", "one", 60.0), ("other", "two", 10.0))
        }
        self.closed = 0

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        return [box for box in self.boxes.values() if labels.items() <= box.labels.items()]

    async def reap(self, sandbox_id: str) -> None:
        if sandbox_id == "stuck":
            raise SandboxError("no answer")
        self.boxes.pop(sandbox_id, None)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> MemoryProvider:
    made = MemoryProvider()
    monkeypatch.setattr(sandboxes, "make_provider", lambda settings: made)
    return made


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["sandbox", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_boxes_are_listed_oldest_first(provider: MemoryProvider, capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(["ls"], capsys)
    assert shown["provider"] == "local" and [box["id"] for box in shown["sandboxes"]] == ["old", "young", "other"]
    assert [box["id"] for box in document(["ls", "--run", "two"], capsys)["sandboxes"]] == ["other"]
    assert main(["sandbox", "ls"]) == 0
    assert "2 h" in capsys.readouterr().out and provider.closed == 3


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
def test_just_the_selected_boxes_are_ended(
    arguments: list[str], expected: list[str], provider: MemoryProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(provider.boxes)
    dry = document(["reap", *arguments, "--dry-run"], capsys)
    assert [box["id"] for box in dry["reaped"]] == expected and set(provider.boxes) == before
    assert [box["id"] for box in document(["reap", *arguments], capsys)["reaped"]] == expected
    assert set(provider.boxes) == before - set(expected) and provider.closed == 2


def test_an_unknown_id_ends_nothing(provider: MemoryProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "reap", "old", "nobody"]) == 1
    assert "There is no sandbox nobody" in capsys.readouterr().err and "old" in provider.boxes


def test_a_box_that_cannot_be_ended_does_not_keep_the_others(
    provider: MemoryProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.boxes["stuck"] = SandboxInfo(id="stuck", state="error", labels={}, created=time.time())
    assert main(["sandbox", "reap", "--all"]) == 69
    assert "1 of 4 sandboxes could not be ended; the first is stuck: no answer" in capsys.readouterr().err
    assert set(provider.boxes) == {"stuck"} and provider.closed == 1
