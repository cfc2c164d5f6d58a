from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.app import main


@pytest.fixture(autouse=True)
def _own_home(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_HOME", str(empty_folder / "home"))


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_a_snapshot_from_building_to_deleting(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(["snapshot", "list"], capsys) == {"snapshots": []}
    first = document(["snapshot", "build"], capsys)
    again = document(["snapshot", "build"], capsys)
    assert first["new"] and not again["new"] and again["digest"] == first["digest"]
    assert first["name"] == "openenv-finqa" and Path(first["path"]).is_dir()
    shown = document(["snapshot", "show"], capsys)
    assert shown["manifest"]["questions"] > 0 and shown["versions"] == [Path(first["path"]).name]
    assert [one["name"] for one in document(["snapshot", "list"], capsys)["snapshots"]] == ["openenv-finqa"]
    assert document(["snapshot", "delete", "openenv-finqa"], capsys)["deleted"] == shown["versions"]
    assert document(["snapshot", "list"], capsys) == {"snapshots": []}


def test_the_text_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "list"]) == 0
    assert "finqa snapshot build" in capsys.readouterr().out
    for start in ("Built snapshot mine", "Nothing to do"):
        assert main(["snapshot", "build", "--snapshot-name", "mine", "--quiet"]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(start) and captured.err == ""
    assert main(["snapshot", "show", "mine"]) == 0
    assert "companies" in capsys.readouterr().out


def test_a_damaged_snapshot_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    built = document(["snapshot", "build"], capsys)
    with (Path(built["path"]) / "tasks.jsonl").open("a") as file:
        file.write("{}\n")
    assert main(["snapshot", "list"]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["snapshot", "show"]) == 65
    assert "fix: finqa snapshot build" in capsys.readouterr().err
    assert document(["snapshot", "build"], capsys)["digest"] == built["digest"]
    assert main(["snapshot", "show"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "absent"], "There is no snapshot 'absent'"),
        (["delete", "absent"], "There is no snapshot 'absent'"),
        (["build", "--data", "absent"], "absent"),
        (["build", "--snapshot-name", "../up"], "no name for a snapshot"),
        (["delete", ".."], "no name for a snapshot"),
    ],
)
def test_what_cannot_be_done_is_explained_with_65(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", *arguments]) == 65
    captured = capsys.readouterr()
    assert said in captured.err and "fix: " in captured.err and captured.out == ""
