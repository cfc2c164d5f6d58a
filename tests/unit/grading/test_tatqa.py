"""TAT-QA's measures against replies of its published script, taken once, and against its gold answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.grading.tatqa import SCALES, TatQAScore, score

SCORES = Path(__file__).parents[2] / "fixtures" / "tatqa_scores.jsonl"
DEV = Path(__file__).parents[4] / "shared" / "data" / "tatqa" / "tatqa_dataset_dev.json"


def test_scores_are_those_of_the_published_script() -> None:
    rows = [json.loads(line) for line in SCORES.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 600 and {row[5] for row in rows} == {0.0, 1.0}
    for kind, truth, truth_scale, answer, scale, exact, f1, right_scale in rows:
        found = score(answer, scale, truth=truth, kind=kind, truth_scale=truth_scale)
        assert found == TatQAScore(exact=exact, f1=f1, scale=right_scale), (kind, truth, truth_scale, answer, scale)


@pytest.mark.skipif(not DEV.is_file(), reason="TAT-QA is not here")
def test_gold_answers_are_right() -> None:
    questions = [question for page in json.loads(DEV.read_text(encoding="utf-8")) for question in page["questions"]]
    assert len(questions) == 1668
    for question in questions:
        truth = question["answer"]
        answer = truth if isinstance(truth, list) else str(truth)
        found = score(
            answer, question["scale"], truth=truth, kind=question["answer_type"], truth_scale=question["scale"]
        )
        assert found == TatQAScore(exact=1.0, f1=1.0, scale=1.0)


@given(
    st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.one_of(st.text(), st.floats()))),
    st.sampled_from(SCALES),
    st.lists(st.text(), min_size=1),
)
def test_no_answer_raises(answer: object, scale: str, truth: list[str]) -> None:
    found = score(answer, scale, truth=truth, kind="multi-span", truth_scale="")  # type: ignore[arg-type]
    assert found.exact in (0.0, 1.0) and 0.0 <= found.f1 <= 1.0 and (not answer or found.scale == float(scale == ""))


@pytest.mark.parametrize(
    "answer", ["9" * 500_000, "9" * 250 + ".5", "1e999", "nan", "-" * 10_000, "(" * 10_000, "1" * 308]
)
def test_hostile_numbers_are_wrong_answers(answer: str) -> None:
    for scale in SCALES:
        assert score(answer, scale, truth=3, kind="arithmetic", truth_scale="").exact == 0.0
