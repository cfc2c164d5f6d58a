from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import failure
from fixtures.data_files import DATASET, write_folder

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
        assert main(["snapshot", "build", "--snapshot-name", "mine", "--data", "embedded", "--quiet"]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(start) and captured.err == ""
    assert main(["snapshot", "show", "mine"]) == 0
    assert "companies" in capsys.readouterr().out


def test_a_name_that_gets_other_data_says_what_it_was(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(empty_folder / "own")
    mine = ["snapshot", "build", "--snapshot-name", "mine", "--quiet", "--data"]
    first = document([*mine, "own"], capsys)
    assert first["replaced"] is None and document([*mine, "own"], capsys)["replaced"] is None
    assert main([*mine, "embedded"]) == 0
    out = capsys.readouterr().out
    short = first["digest"].removeprefix("sha256:")[:12]
    assert f"mine was {short} (" in out and first["path"] in out and Path(first["path"]).is_dir()
    assert document([*mine, "own"], capsys)["digest"] == first["digest"]


def test_an_import_says_what_its_snapshot_name_was(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t").mkdir()
    Path("t/income.csv").write_text("item,2023\nRevenue,7\n")
    Path("q.csv").write_text("question,answer,company\nRevenue in 2023?,7,acme\n")
    command = ["data", "import", "tables", "t", "--questions=q.csv", "--company=name:acme", "--snapshot-name=mine"]
    first = document([*command, "--out=one"], capsys)
    assert first["replaced"] is None
    Path("t/income.csv").write_text("item,2023\nRevenue,7\nCosts,3\n")
    assert main([*command, "--out=two"]) == 0
    out = capsys.readouterr().out
    assert f"mine was {first['digest'].removeprefix('sha256:')[:12]} (" in out and "another --snapshot-name" in out


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
        (["build", "--snapshot-name", "../up"], "not a valid snapshot name: at most 64"),
        (["delete", ".."], "not a valid snapshot name: at most 64"),
    ],
)
def test_what_cannot_be_done_is_explained_with_65(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", *arguments]) == 65
    captured = capsys.readouterr()
    assert said in captured.err and "fix: " in captured.err and captured.out == ""


def test_a_mistyped_name_gets_the_near_one_before_a_build(capsys: pytest.CaptureFixture[str]) -> None:
    document(["snapshot", "build", "--snapshot-name=mine", "--data=embedded"], capsys)
    build = "finqa snapshot build --snapshot-name mien --data DIR"
    for arguments, fix in (
        (["eval", "scripted", "--snapshot=mien"], f"--snapshot mine, or {build}"),
        (["snapshot", "show", "mien"], f"finqa snapshot show mine, or {build}"),
        (["snapshot", "show", "other"], "finqa snapshot build --snapshot-name other --data DIR"),
    ):
        status, said = failure(arguments, capsys)
        assert status == 65 and "There are: mine." in said and said.endswith(f"fix: {fix}\n")
    with (Path(document(["snapshot", "show", "mine"], capsys)["path"]) / "tasks.jsonl").open("a") as file:
        file.write("{}\n")
    _, said = failure(["snapshot", "show", "mien"], capsys)
    assert said.endswith(f"fix: {build}\n"), "a damaged snapshot does not help"


def test_invented_companies_get_no_name_of_real_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("finqa.toml").write_text('data.snapshot = "rllm"\n')
    for arguments in (["--snapshot-name=rllm"], []):  # by the flag, then by a settings file
        status, said = failure(["snapshot", "build", *arguments], capsys)
        assert status == 2 and "without --data only the embedded data set is built, under its own name." in said
        command = "finqa snapshot build --snapshot-name rllm"
        assert said.endswith(f"fix: {command} --data DIR, or {command} --data embedded\n")
    Path("finqa.toml").unlink()
    monkeypatch.setenv("FINQA_DATA__SNAPSHOT", "rllm")
    assert failure(["snapshot", "build"], capsys)[0] == 2
    assert document(["snapshot", "list"], capsys) == {"snapshots": []}
    assert document(["snapshot", "build", "--data=embedded"], capsys)["name"] == "rllm"


def test_the_embedded_set_replaces_no_other_data_unless_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("own"))
    own = document(["snapshot", "build", "--data=own"], capsys)
    status, said = failure(["snapshot", "build"], capsys)
    assert status == 2 and "Snapshot 'openenv-finqa' has other data" in said
    Path(own["path"], "manifest.json").write_text("damaged")
    assert failure(["snapshot", "build"], capsys)[0] == 2, "damaged, it is still the data of the user"
    Path(own["path"]).parent.joinpath("current").unlink()
    status, said = failure(["play", "--engine=scripted"], capsys)
    assert Path(own["path"]).is_dir()
    assert document(["snapshot", "build", "--data=own"], capsys)["digest"] == own["digest"]
    assert document(["snapshot", "build", "--data=embedded"], capsys)["digest"] != own["digest"]
    assert Path(own["path"]).is_dir(), "the other version is kept"
    assert not document(["snapshot", "build"], capsys)["new"]


def test_an_image_is_made_of_the_data_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("own"))
    own = document(["snapshot", "build", "--data=own", "--snapshot-name=own"], capsys)
    again = document(["snapshot", "build", "--snapshot-name=own", "--sandbox=local"], capsys)
    assert (again["digest"], again["new"]) == (own["digest"], False)
    assert failure(["snapshot", "build", "--snapshot-name=another", "--sandbox=local"], capsys)[0] == 2


def test_data_of_a_settings_file_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("own"))
    Path("finqa.toml").write_text('[data]\nsnapshot = "own"\npath = "own"\n')
    assert document(["snapshot", "build"], capsys)["manifest"]["companies"] == len(DATASET.companies())
    assert failure(["snapshot", "build", "--data=none"], capsys)[0] == 65


def test_a_folder_named_embedded_is_that_folder(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("embedded"))
    built = document(["snapshot", "build", "--data=embedded", "--snapshot-name=mine"], capsys)
    assert built["manifest"]["companies"] == len(DATASET.companies())
