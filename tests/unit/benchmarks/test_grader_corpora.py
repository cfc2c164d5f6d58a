"""The corpora of the grader: frozen by digests, in parts."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.grader.corpora import FOLDER, PARTS, Row, measure, read_corpora, widened_truths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER / "dev", tmp_path / "dev")
    shutil.copy(FOLDER / "DIGESTS", tmp_path)
    return tmp_path


def test_a_part_that_is_not_there_is_left_out(folder: Path) -> None:
    assert list(read_corpora(folder)) == ["dev"]
    assert read_corpora().keys() <= set(PARTS)


def test_a_row_that_was_changed_is_an_error(folder: Path) -> None:
    path = folder / "dev/honest.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("6.118", "6.119", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="has not the digest"):
        read_corpora(folder)


def test_half_a_part_is_an_error(folder: Path) -> None:
    (folder / "dev/hacks.jsonl").unlink()
    with pytest.raises(ValueError, match="only"):
        read_corpora(folder)


def test_rows_may_call_their_keys_trick_and_note(folder: Path) -> None:
    row = {"id": "b1", "question": "How many?", "truth": "5", "answer": "5", "note": "plain"}
    (folder / "blind").mkdir()
    for kind, key in (("honest", "form"), ("hacks", "trick")):
        path = folder / f"blind/{kind}.jsonl"
        path.write_text(json.dumps({**row, key: "bare"}) + "\n", encoding="utf-8")
        with (folder / "DIGESTS").open("a", encoding="utf-8") as digests:
            digests.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  blind/{kind}.jsonl\n")
    found = read_corpora(folder)["blind"]
    assert [(one.form, one.why) for kind in ("honest", "hacks") for one in found[kind]] == [("bare", "plain")] * 2


def test_a_row_without_a_key_is_an_error(folder: Path) -> None:
    path = folder / "dev/honest.jsonl"
    path.write_text('{"id": "b1", "question": "", "truth": "5"}\n', encoding="utf-8")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    digests = (folder / "DIGESTS").read_text(encoding="utf-8").replace("dev/honest.jsonl", "dev/honest.old")
    (folder / "DIGESTS").write_text(f"{digests}{digest}  dev/honest.jsonl\n", encoding="utf-8")
    with pytest.raises(ValueError, match="without 'answer'"):
        read_corpora(folder)


def test_the_share_of_false_accepts_has_an_interval() -> None:
    found = measure(read_corpora()["dev"], "openenv")
    assert 0 < found.false_accepts.low < found.false_accepts.mean < found.false_accepts.high < 0.15
    assert len(found.paid) > 0


def test_an_answer_that_is_paid_under_other_truths_is_known_by_them() -> None:
    def row(truth: str, answer: str) -> Row:
        return Row(id="x", question="What was the change?", truth=truth, answer=answer, form="", why="")

    assert widened_truths(row("18.6", "18.6%"), (), "openenv") == ("0.186",)
    assert widened_truths(row("14.6", "14.6, a decrease"), (), "strict-3") == ()
    names = [row("Retail", "Retail"), row("Energy", "Energy")]
    assert widened_truths(row("Retail", "Retail"), names, "strict-3") == ()


def test_unseen_hacks_that_are_paid_pay_no_more_than_the_plain_answer() -> None:
    rows = read_corpora()["blind"]
    paid = {profile: measure(rows, profile).paid for profile in ("openenv", "strict-3")}
    more = {
        profile: [row.id for row in found if widened_truths(row, rows["hacks"], profile)]
        for profile, found in paid.items()
    }
    assert not more["strict-3"] and len(more["openenv"]) > 10
