from __future__ import annotations

import errno
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from finqa_cli.data import DEFAULT_NAME, DataSet, GenerateSpec, LocalSnapshots, write_layout
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.snapshots.compile import compile_snapshot, table_info
from finqa_cli.errors import DataError, StorageError

DATASET = generate(GenerateSpec(companies=4, questions=5, seed=2))
CHANGED = generate(GenerateSpec(companies=4, questions=5, seed=3))


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_compiled_folder_holds_tables_tasks_and_truth_apart(tmp_path: Path) -> None:
    compile_snapshot(DATASET, tmp_path)
    with sqlite3.connect(tmp_path / "tables.sqlite") as connection:
        catalog = connection.execute("SELECT company, table_name, physical, info FROM catalog").fetchall()
        for company, name, physical, info in catalog:
            table = next(t for t in DATASET.tables if (t.company, t.name) == (company, name))
            cursor = connection.execute(f'SELECT * FROM "{physical}"')
            assert tuple(cursor.fetchall()) == table.rows
            assert tuple(column[0] for column in cursor.description) == table.columns
            assert info == table_info(table) and "\n" not in info
    connection.close()
    assert len(catalog) == len(DATASET.tables)
    tasks, truth = lines(tmp_path / "tasks.jsonl"), lines(tmp_path / "truth.jsonl")
    assert [set(task) for task in tasks] == [{"id", "company", "question", "user_query", "split", "type"}] * len(tasks)
    assert [(one["id"], one["answer"], one["gold_sql"]) for one in truth] == [
        (question.id, question.answer, question.gold_sql) for question in DATASET.questions
    ]


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    digests = []
    for folder in folders:
        folder.mkdir()
        digests.append(compile_snapshot(DATASET, folder))
    assert digests[0] == digests[1]
    for name in ("tables.sqlite", "tasks.jsonl", "truth.jsonl", "manifest.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_building_twice_changes_nothing_and_a_changed_source_is_another_version(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    first, new = store.build("mine", DATASET)
    again, new_again = store.build("mine", DATASET)
    assert (new, new_again) == (True, False) and first == again
    changed, _ = store.build("mine", CHANGED)
    assert changed.digest != first.digest and first.path.is_dir()
    assert store.get("mine") == changed
    assert store.versions("mine") == sorted([first.path.name, changed.path.name])
    back, new = store.build("mine", DATASET)
    assert not new and store.get("mine") == back == first


def test_a_folder_builds_what_its_data_set_builds(tmp_path: Path) -> None:
    write_layout(DATASET, tmp_path / "data")
    store = LocalSnapshots(tmp_path / "home")
    assert store.build("a", DATASET)[0].digest == store.build("b", tmp_path / "data")[0].digest
    assert store.get("b").metadata["source"] == DATASET.source


def test_a_new_description_of_the_same_data_is_kept(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    store.build("mine", DATASET)
    described, new = store.build("mine", replace(DATASET, evaluation_only=True))
    assert not new and described.metadata["evaluation_only"] is True


def test_the_default_name_is_built_from_the_embedded_data_when_it_is_missing(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    snapshot, new = store.get_or_build(DEFAULT_NAME)
    assert new and snapshot.metadata["companies"] == 60
    assert store.get_or_build(DEFAULT_NAME) == (snapshot, False)
    with pytest.raises(DataError, match="no snapshot 'other'"):
        store.get_or_build("other")


def test_a_missing_snapshot_names_the_command_and_what_there_is(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    store.build("mine", DATASET)
    with pytest.raises(DataError) as caught:
        store.get("nine")
    assert caught.value.remedy == "--snapshot mine, or finqa snapshot build --snapshot-name nine --data DIR"
    assert "There are: mine." in caught.value.message


@pytest.mark.parametrize("name", ["tables.sqlite", "tasks.jsonl", "truth.jsonl", "manifest.json", "../current"])
@pytest.mark.parametrize("damage", ["change", "remove", "truncate"])
def test_a_damaged_snapshot_is_found_and_building_mends_it(tmp_path: Path, name: str, damage: str) -> None:
    store = LocalSnapshots(tmp_path)
    snapshot, _ = store.build("mine", DATASET)
    path = snapshot.path / name
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if damage == "truncate" else b"#" + content)
    with pytest.raises(DataError) as caught:
        store.get("mine")
    assert caught.value.remedy == "finqa snapshot build --snapshot-name mine --data DIR"
    assert store.list() == [] if name == "../current" and damage == "remove" else "error" in store.list()[0].metadata
    assert store.build("mine", DATASET)[0] == snapshot == store.get("mine")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "a b"])
def test_names_that_could_leave_the_store_are_refused(tmp_path: Path, name: str) -> None:
    store = LocalSnapshots(tmp_path)
    for act in (store.get, store.delete, lambda name: store.build(name, DATASET)):
        with pytest.raises(DataError, match="not a valid snapshot name: at most 64"):
            act(name)
    assert not list(tmp_path.iterdir())


def test_delete_removes_every_version_and_nothing_else(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    store.build("mine", DATASET)
    store.build("mine", CHANGED)
    store.build("yours", DATASET)
    assert len(store.delete("mine")) == 2
    assert [snapshot.name for snapshot in store.list()] == ["yours"]
    with pytest.raises(DataError):
        store.delete("mine")


def test_a_full_disk_leaves_the_current_snapshot_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalSnapshots(tmp_path)
    before, _ = store.build("mine", DATASET)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(descriptor: int) -> None:
        raise full

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        store.build("mine", CHANGED)
    monkeypatch.undo()
    assert store.get("mine") == before
    assert sorted(path.name for path in before.path.parent.iterdir()) == sorted([before.path.name, "current"])


def test_a_home_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StorageError):
        LocalSnapshots(tmp_path / "home").build("mine", DATASET)


def test_old_leftovers_of_killed_builds_are_swept(tmp_path: Path) -> None:
    store = LocalSnapshots(tmp_path)
    store.build("mine", DATASET)
    old, young = tmp_path / "snapshots/mine/.building-old", tmp_path / "snapshots/mine/.building-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    store.build("mine", DATASET)
    assert not old.exists() and young.exists()


def test_a_table_that_sqlite_cannot_hold_is_named(tmp_path: Path) -> None:
    wide = replace(DATASET.tables[0], columns=tuple(f"c{n}" for n in range(3000)), rows=(tuple(range(3000)),))
    dataset: DataSet = replace(DATASET, tables=(wide,))
    with pytest.raises(DataError, match=f"{wide.company}/{wide.name} cannot be stored"):
        LocalSnapshots(tmp_path).build("mine", dataset)
    assert [path.name for path in (tmp_path / "snapshots/mine").iterdir()] == []
