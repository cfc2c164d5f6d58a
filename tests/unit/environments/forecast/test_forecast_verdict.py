from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.contracts import Reward
from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import Message, Rewards, Task
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow
from finqa_plugins.environments.forecast.forecast_verdict import judge
from finqa_plugins.rewards.reward_function import Function, FunctionConfig


def judged(
    text: str, *truths: str, kind: str = "event_detection", by: Reward | None = None, **options: object
) -> Rewards:
    row = ForecastRow(
        id="1",
        messages=(Message(role="user", content="?"),),
        question="Will it rise?",
        truths=truths or ("yes",),
        question_type=kind,
        uncertainty=0.9,
        extra={"ticker": "ACME", "uncertainty": 9.0},
    )
    task = Task(id="1", prompt="?", split="train", cluster="ACME", kind=kind)
    return judge(text, row, task, ForecastConfig.model_validate(options), by)


def test_parts_of_a_right_answer() -> None:
    found = judged("I think so. <answer>Yes</answer>")
    assert found.total == 1
    assert found.components == {
        "score": 1.0,
        "correct": 1.0,
        "event_detection": 1.0,
        "format": 1.0,
        "has_answer_tag": 1.0,
        "response_length": 4.0,
        "is_refusal": 0.0,
        "exact_match": 1.0,
        "uncertainty": 0.9,
    }
    assert found.explanation == "The answer scores 1.00."


@pytest.mark.parametrize(
    ("text", "profile", "total", "why"),
    [
        ("yes", "strict", 0, "not one answer"),
        ("yes", "versatile", 1, "The whole text scores 1.00"),
        ("<answer></answer> yes", "versatile", 0, "scores 0.00"),
        ("<answer>yes</answer><answer>no</answer>", "strict", 0, "not one answer"),
        ("<answer>I cannot predict this</answer>", "strict", 0, "a refusal"),
        ("", "strict", 0, "not one answer"),
        ("", "versatile", 0, "not one answer"),
    ],
)
def test_what_tags_and_refusals_do(text: str, profile: str, total: float, why: str) -> None:
    found = judged(text, profile=profile)
    assert found.total == total and why in found.explanation


def test_of_several_accepted_answers_the_best_counts() -> None:
    assert judged("<answer>Day 4</answer>", "Day 3", "Day 4", kind="multi_signal_reasoning").total == 1
    published = judged("<answer>Day 4</answer>", "Day 3", "Day 4", kind="multi_signal_reasoning", profile="versatile")
    assert published.total == 0.7, "the first one"


def test_refusals_are_of_forecasts_in_the_published_profile() -> None:
    kinds = ("pure_forecast", "event_detection")
    found = [judged("<answer>I am uncertain</answer>", "3", kind=kind, profile="versatile") for kind in kinds]
    assert [one.components["is_refusal"] for one in found] == [1, 0]


@pytest.mark.parametrize(("stated", "direction"), [("1%", 1), ("-1%", 0), ("0", 0), ("about 1%", 0), ("", 0)])
def test_forecasts_have_a_direction(stated: str, direction: float) -> None:
    found = judged(f"<answer>{stated}</answer>", "+2.5%", kind="pure_forecast")
    assert found.components["direction_correct"] == direction
    assert "direction_correct" not in judged("<answer>yes</answer>").components


@pytest.mark.parametrize(("profile", "direction"), [("strict", 0), ("versatile", 1)])
def test_each_profile_reads_the_truth_as_it_reads_answers(profile: str, direction: float) -> None:
    found = judged("<answer>3</answer>", "-.5", kind="pure_forecast", profile=profile)
    assert found.components["direction_correct"] == direction, "to the published code -.5 is 5"


def test_the_end_of_a_text_is_no_answer_in_the_published_profile() -> None:
    kind = "multi_signal_reasoning"
    assert judged("<|endoftext|>", "Do", kind=kind, profile="versatile").total == 0, "it holds the word"
    assert judged("<answer>yes<|endoftext|></answer>", profile="versatile").components["exact_match"] == 1


def test_right_is_what_scores_enough() -> None:
    close = "<answer>Day 4</answer>"
    assert judged(close, "Day 3", kind="multi_signal_reasoning").components["correct"] == 1
    assert judged(close, "Day 3", kind="multi_signal_reasoning", correct_at=0.8).components["correct"] == 0


@pytest.mark.parametrize(
    ("answer", "confidence", "total"),
    [
        ("yes", "<confidence>1.0</confidence>", 1.0),
        ("yes", "<confidence>0.8</confidence>", 0.96),
        ("yes", "<confidence>0</confidence>", 0.0),
        ("no", "<confidence>0</confidence>", 0.0),
        ("no", "<confidence>0.8</confidence>", -0.64),
        ("no", "<confidence>1</confidence>", -1.0),
        ("yes", "", 0.0),
        ("no", "", -1.0),
        ("yes", "<confidence>80</confidence>", 0.0),
        ("no", "<confidence>sure</confidence>", -1.0),
    ],
)
def test_rlcr(answer: str, confidence: str, total: float) -> None:
    found = judged(f"<answer>{answer}</answer>{confidence}", reward="rlcr")
    assert found.total == pytest.approx(total)
    assert found.components["score"] == found.components["correct"] == float(answer == "yes")
    assert ("confidence" in found.components) == (found.components["format"] > 0)


@pytest.mark.parametrize("known", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_under_rlcr_the_best_confidence_is_the_probability_of_being_right(known: float) -> None:
    def expected(tenths: int) -> float:
        stated = f"<confidence>{tenths / 10}</confidence>"
        right, wrong = (judged(f"<answer>{answer}</answer>{stated}", reward="rlcr").total for answer in ("yes", "no"))
        return known * right + (1 - known) * wrong

    assert max(range(11), key=expected) == round(known * 10)
    assert expected(round(known * 10)) > known - 1  # what a reply without a confidence is worth


def function(folder: Path, body: str) -> Function:
    path = folder / "published.py"
    path.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")
    return Function(FunctionConfig(function=str(path)))


def test_a_reward_function_of_verl_sees_type_and_uncertainty_and_its_total_counts(tmp_path: Path) -> None:
    given = function(
        tmp_path,
        "u = extra_info['uncertainty']; assert (data_source, ground_truth) == ('financeqa/stock', 'yes')\n"
        "    assert extra_info['question_type'] == 'event_detection' and extra_info['ticker'] == 'ACME'\n"
        "    return {'score': 0.25 * u, 'correct': 7.0, 'length': len(solution_str)}",
    )
    for place, weight in (("off", 1), ("reward", 1), ("advantage", 0.125)):
        found = judged("<answer>yes</answer>", by=given, uncertainty=place)
        assert found.total == pytest.approx(0.225) and found.weight == pytest.approx(weight)
        assert found.components["correct"] == 1 and found.components["length"] == 20
        assert found.components["score"] == 1


def test_a_reward_function_that_fails_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="raised"):
        judged("<answer>yes</answer>", by=function(tmp_path, "raise ValueError('broken')"))
