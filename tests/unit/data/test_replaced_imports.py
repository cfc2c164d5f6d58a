"""`finqa data import tables --overwrite`: what an import wrote is replaced, whole, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.data_files import DATASET
from fixtures.own_tables import as_csv, question_rows, write_questions

from finqa_cli.app import main
from finqa_cli.data import LocalSnapshots
from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE, write_layout
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.openenv_layout.replace_layout import write_import
from finqa_cli.errors import DataError, StorageError

FEWER = replace(
    DATASET,
    questions=DATASET.questions[:1],
    tables=tuple(table for table in DATASET.tables if table.company == DATASET.questions[0].company),
)
RENAMES = 8
"""Four parts are moved away, and four into their place."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fail_renames(monkeypatch: pytest.MonkeyPatch, after: int, *, forever: bool) -> None:
    """Lets a rename fail after some have worked: once, or as if the process were killed, which also repairs nothing."""
    done, rename = 0, Path.rename

    def move(source: Path, target: Any) -> Path:
        nonlocal done
        done += 1
        if done == after + 1 or (forever and done > after):
            raise OSError(28, "No space left on device")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", move)


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A folder of an import, with a file of the user."""
    folder = tmp_path / "mine"
    assert not write_import(DATASET, folder)
    (folder / "notes.txt").write_text("mine")
    return folder


def test_the_same_command_replaces_changed_data_and_snapshots_keep_theirs(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FINQA_HOME", "home")
    as_csv(Path())
    command = ["data", "import", "tables", "tables", "--questions=q.csv", "--out=mine", "--snapshot-name=mine"]
    write_questions(Path("q.csv"))
    assert main(command) == 0
    write_questions(Path("q.csv"), question_rows()[:4])
    capsys.readouterr()
    assert main(command) == 74
    assert "If an earlier import wrote it, --overwrite replaces it.\nfix: --out mine-2" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["overwritten"] and document["kept"] == 4 == len(read_layout(Path("mine")).questions)
    assert len(LocalSnapshots(Path("home")).versions("mine")) == 2


def test_only_what_the_import_wrote_is_replaced(imported: Path, tmp_path: Path) -> None:
    assert write_import(FEWER, imported, overwrite=True)
    assert not write_import(FEWER, tmp_path / "fresh", overwrite=True)
    assert contents(imported) == {**contents(tmp_path / "fresh"), "notes.txt": b"mine"}


@pytest.mark.parametrize("name", [QUESTIONS_FILE, "dataset.json", "input_companies/extra.json"])
def test_what_was_edited_or_added_since_is_not_replaced(imported: Path, name: str) -> None:
    (imported / name).write_text("edited")
    before = contents(imported)
    with pytest.raises(StorageError, match=f"{name} is not as `finqa data import tables` wrote it") as caught:
        write_import(FEWER, imported, overwrite=True)
    assert caught.value.remedy == f"--out {imported}-2" and contents(imported) == before


def test_data_of_another_command_is_not_replaced(tmp_path: Path) -> None:
    write_layout(DATASET, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="`finqa data import tables` did not write"):
        write_import(FEWER, tmp_path, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("after", range(RENAMES))
def test_a_failure_keeps_the_old_data(imported: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(imported)
    with monkeypatch.context() as patched:
        fail_renames(patched, after, forever=False)
        with pytest.raises(StorageError, match=r"Replacing the data set in .* failed: No space left"):
            write_import(FEWER, imported, overwrite=True)
    assert contents(imported) == before


@pytest.mark.parametrize("after", range(RENAMES))
def test_a_killed_import_leaves_no_mixture_and_the_same_call_completes_it(
    imported: Path, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fail_renames(patched, after, forever=True)
        with pytest.raises(StorageError):
            write_import(FEWER, imported, overwrite=True)
    if after:
        with pytest.raises(DataError):
            read_layout(imported)
    else:
        assert len(read_layout(imported).questions) == len(DATASET.questions)
    write_import(FEWER, imported, overwrite=True)
    write_import(FEWER, tmp_path / "fresh")
    assert contents(imported) == {**contents(tmp_path / "fresh"), "notes.txt": b"mine"}


def test_a_folder_of_something_else_is_unchanged_and_hidden_files_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".gitignore").write_text("*")
    write_import(DATASET, folder)
    other = tmp_path / "etc"
    other.mkdir()
    (other / "passwd").write_text("x")
    for write in (write_layout, write_import):
        with pytest.raises(StorageError, match="contains passwd") as caught:
            write(DATASET, other)
        assert caught.value.remedy == f"--out {other}-2"
    assert contents(other) == {"passwd": b"x"}
