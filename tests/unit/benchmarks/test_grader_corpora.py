"""The corpora of the grader: frozen by digests, by halves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.grader.corpora import FOLDER, HALVES, measure, read_corpora


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER / "dev", tmp_path / "dev")
    shutil.copy(FOLDER / "DIGESTS", tmp_path)
    return tmp_path


def test_a_half_that_is_not_there_is_left_out(folder: Path) -> None:
    assert list(read_corpora(folder)) == ["dev"]
    assert read_corpora().keys() <= set(HALVES)


def test_a_row_that_was_changed_is_an_error(folder: Path) -> None:
    path = folder / "dev/honest.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("6.118", "6.119", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="has not the digest"):
        read_corpora(folder)


def test_half_a_half_is_an_error(folder: Path) -> None:
    (folder / "dev/hacks.jsonl").unlink()
    with pytest.raises(ValueError, match="only"):
        read_corpora(folder)


def test_the_share_of_false_accepts_has_an_interval() -> None:
    found = measure(read_corpora()["dev"], "openenv")
    assert 0 < found.false_accepts.low < found.false_accepts.mean < found.false_accepts.high < 0.15
    assert len(found.paid) > 0
