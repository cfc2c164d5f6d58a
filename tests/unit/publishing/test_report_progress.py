"""What a training changed: which evaluations are compared, and which questions show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.report_runs import attempt, evaluated, training, write_run

from finqa_cli.publishing.report.report_progress import Pair, choose_examples, pair_evaluations, progress_document
from finqa_cli.publishing.report.report_records import Episode, read_episode, read_records
from finqa_cli.publishing.report.run_report import choose_episodes
from finqa_cli.runs.trajectory_records import trajectory_record


def episode(question: str, kind: str, reward: float | None, step: int, member: int = 0) -> Episode:
    one = attempt(question, member, reward=reward, kind=kind, step=step)
    return read_episode({**trajectory_record(one), "phase": "eval", "iteration": step}, line=1)


def pair(text: str) -> Pair:
    """`a:sum:01` is question a of kind sum, wrong before and right after."""
    question, kind, (before, after) = text.split(":")
    return episode(question, kind, float(before), 0), episode(question, kind, float(after), 5)


@pytest.mark.parametrize(
    ("pairs", "chosen"),
    [
        ("a:sum:01 b:sum:01 c:ratio:01 d:lookup:01", "acd"),  # of different kinds, in the order of the data
        ("a:sum:11 b:sum:01 c:sum:00 d:sum:01 e:ratio:01", "bed"),  # a kind again after all kinds had one
        ("a:sum:11 b:sum:10 c:ratio:00 d:sum:01", "dca"),  # others follow, of new kinds first
        ("a::01 b::01 c::01 d::01", "abc"),  # there are no kinds
        ("a:sum:10 b:sum:10", "ab"),  # a training that made it worse shows that
        ("", ""),
    ],
)
def test_three_questions_are_chosen_by_verdict_kind_and_order(pairs: str, chosen: str) -> None:
    found = choose_examples([pair(text) for text in pairs.split()])
    assert "".join(one.outcome.question for one, _ in found) == chosen


def test_the_first_graded_attempts_of_both_evaluations_are_paired() -> None:
    episodes = [
        episode("a", "", 0.0, 0),
        episode("a", "", 1.0, 0, member=1),
        episode("b", "", None, 0),
        episode("b", "", 1.0, 0, member=1),
        episode("c", "", None, 0),
        episode("d", "", 1.0, 0),
        episode("a", "", 1.0, 3),  # of an evaluation between the two
        *(episode(question, "", 1.0, 5) for question in "abc"),
    ]
    found = pair_evaluations(episodes, 0, 5)
    assert [(one.id, other.id) for one, other in found] == [
        ("eval/0000/a/0", "eval/0005/a/0"),
        ("eval/0000/b/1", "eval/0005/b/0"),  # the first attempt at b ended in a fault
    ]


def test_the_document_has_what_the_terminal_prints(tmp_path: Path) -> None:
    found = progress_document(read_records(evaluated(tmp_path / "run")))
    assert found is not None and found["iterations"] == 3 and found["asked"] == "6"
    assert found["clustered_by"] == "company"
    assert found["before"] == [1 / 6, 0.0, 1.0] and found["after"] == [5 / 6, 0.0, 1.0]
    assert found["rows"][:2] == [
        ["accuracy, greedy", "0.167 [0.000, 1.000]", "0.833 [0.000, 1.000]"],
        ["queries with quoted years", "0.0 %", "100.0 %"],
    ]
    assert found["changes"] == {"became_right": 4, "became_wrong": 0, "stayed_right": 1, "stayed_wrong": 1}
    assert found["examples"] == [[f"eval/0000/q{at}_x/0", f"eval/0003/q{at}_x/0"] for at in (1, 2, 3)]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("evaluations", [[], [0], [2, 2], [None, 2], ["0", 2]])
def test_without_two_evaluations_there_is_none(tmp_path: Path, evaluations: list[int | None]) -> None:
    metrics = [{"kind": "eval", "iteration": step, "accuracy": 0.5} for step in evaluations]
    run = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))], command="train", metrics=metrics)
    assert progress_document(read_records(run)) is None
    assert progress_document(read_records(training(tmp_path / "not evaluated"))) is None


def test_the_chosen_questions_stay_in_a_report_that_leaves_episodes_out(tmp_path: Path) -> None:
    records = read_records(evaluated(tmp_path / "run", steps=5, questions=8))
    kept = choose_episodes(records, 8)
    progress = progress_document(records)
    assert progress is not None
    wanted = {name for names in progress["examples"] for name in names}
    assert {one.id for one in kept.episodes} == {
        one.id for one in records.episodes if one.iteration == 5 and one.phase == "eval"
    } | wanted
    assert list(kept.episodes) == sorted(kept.episodes, key=lambda one: one.order)
