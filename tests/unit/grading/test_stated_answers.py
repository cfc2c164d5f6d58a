"""The stated answer of a reply under another grading profile, in the environments of texts."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from finqa_cli.grading import Profile
from finqa_cli.grading.program_reply import judge_reply
from finqa_plugins.environments.convfinqa.config import ConvFinQAConfig
from finqa_plugins.environments.finqa_text.config import FinQATextConfig

PERCENT = "what was the growth rate of net sales in percent?"


@pytest.mark.parametrize(
    ("answer", "question", "profile", "right"),
    [
        ("9.4%", PERCENT, "strict-1", 1.0),
        ("9.4 percent", PERCENT, "strict-3", 1.0),
        ("9.4", "what was the ratio?", "strict-3", 0.0),
        ("The growth rate of net sales was 9.4%", PERCENT, "strict-3", 1.0),
        ("The growth rate of net sales was 9.4%", PERCENT, "strict-1", 0.0),
        ("between 9 and 10 %", PERCENT, "strict-3", 0.0),
    ],
)
def test_the_profile_grades_the_stated_answer(answer: str, question: str, profile: Profile, right: float) -> None:
    text = json.dumps({"answer": answer, "program": "divide(94, 1000)"})
    verdict = judge_reply(text, 0.094, "divide(94, 1000)", (), question=question, profile=profile)
    assert (verdict.parts["answer"], verdict.parts["correct"]) == (right, 1.0)


@pytest.mark.parametrize("config", [FinQATextConfig, ConvFinQAConfig])
def test_the_version_is_recorded_and_a_judge_is_refused(config: type[FinQATextConfig] | type[ConvFinQAConfig]) -> None:
    assert config().grader == config(grader="strict").grader == "strict-3"
    with pytest.raises(ValidationError, match="grader"):
        config.model_validate({"grader": "judge"})
