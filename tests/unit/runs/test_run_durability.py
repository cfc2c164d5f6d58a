"""What is said to be on disk is on disk, and what a killed or foreign process left does no harm."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.deletion import lock_folder
from finqa_cli.errors import ConfigError, StorageError
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import inert, write_csv
from finqa_cli.runs.jsonl import JsonlWriter, read_jsonl, rewind
from finqa_cli.runs.run_folder import RunFolder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is made durable, in order; a rename is `-> name`."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", renamed)
    return done


def test_a_record_is_durable_before_append_returns(tmp_path: Path, synced: list[str]) -> None:
    writer = JsonlWriter(tmp_path / "x.jsonl")
    writer.append({"n": 1})
    assert synced == ["x.jsonl"]
    writer.append({"n": 2})
    assert synced == ["x.jsonl"] * 2
    writer.close()


def test_a_checkpoint_is_durable_before_it_has_its_name(tmp_path: Path, synced: list[str]) -> None:
    with checkpoints.writing(tmp_path, 7, {}) as folder:
        (folder / "weights.bin").write_bytes(b"x" * 100)
    named = synced.index("-> step_7")
    assert {"weights.bin", "state.json", "manifest.json"} <= set(synced[:named])
    assert synced[named + 1] == "checkpoints", "the name itself"


def test_what_a_killed_process_left_unfinished_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / ".step_3.4242.partial"
    left.mkdir(parents=True)
    (left / "weights.bin").write_bytes(b"gigabytes")
    (left.parent / ".latest_checkpointed_iteration.txt.4242").write_text("3")
    with checkpoints.writing(tmp_path, 5, {}):
        assert not left.exists()
    assert sorted(path.name for path in left.parent.iterdir()) == ["latest_checkpointed_iteration.txt", "step_5"]


def test_a_folder_whose_process_was_killed_before_run_json_is_there_is_used_again(tmp_path: Path) -> None:
    for name in (".lock", "settings.json", ".settings.json.4242", ".run.json.4242"):
        (tmp_path / name).write_text("{")
    with RunFolder.create(tmp_path, command="eval", settings={"a": 1}, save_token_ids=False):
        assert json.loads((tmp_path / "settings.json").read_text()) == {"a": 1}
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path, command="eval", settings={}, save_token_ids=False)


@pytest.mark.parametrize("name", ["settings.json", "notes.txt", ".run.json.bak"])
def test_a_folder_with_other_files_is_not_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        RunFolder.create(tmp_path, command="eval", settings={}, save_token_ids=False)
    assert (tmp_path / name).read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_file_system_without_locks_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StorageError, match=r"cannot be locked.*No locks available") as caught:
        lock_folder(tmp_path)
    assert "flock" in caught.value.remedy


def test_a_long_file_is_rewound_a_record_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    lines = [json.dumps({"iteration": number // 100, "text": "x" * 20_000}) + "\n" for number in range(401)]
    path.write_text("".join(lines))
    size = path.stat().st_size
    tracemalloc.start()
    try:
        assert rewind(path, lambda record: record["iteration"] < 4) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 8
    assert [record["iteration"] for record in read_jsonl(path)] == [number // 100 for number in range(400)]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "trajectories.jsonl",
        "trajectories.superseded.jsonl",
    ]


FORMULAS = (
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "=HYPERLINK(\"http://x\",\"y\")", "  =1+1", "\t=1", "\r=1", "\n=1",
    "-2+3+cmd|' /C calc'!A0", "+A1", "-", "=", "\uff1d1+1", "-5;=1+1", "-5\n=1+1", "-1e5+A1",
)  # fmt: skip
NUMBERS = ("-5", "+5", "-1,234.5", "- 5", "-5 %", "-5%", "-$5.20", "-1e-05", "5", "text", "a=b", "2022: -5", "")


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    write_csv(tmp_path / "items.csv", [{"answer": text} for text in (*FORMULAS, *NUMBERS)])
    with (tmp_path / "items.csv").open(encoding="utf-8", newline="") as file:
        cells = [row["answer"] for row in csv.DictReader(file)]
    assert cells == [*(f"'{text}" for text in FORMULAS), *NUMBERS]


@given(st.text(alphabet="=+-@\t\r\n '\"0123456789.,%eE$Ab(", max_size=12))
def test_a_text_is_inert_and_otherwise_as_it_was(text: str) -> None:
    cell = inert(text)
    assert cell.removeprefix("'") == text or cell == text
    begins = cell.lstrip(" ")[:1]
    assert begins not in ("=", "@", "\t", "\r", "\n")
    assert begins not in ("+", "-") or set(cell) <= set("+-0123456789., eE%$"), "a signed number and nothing else"
