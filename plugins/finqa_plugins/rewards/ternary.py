"""The ternary reward of the RL-LLM FinQA pipeline: +1 exact, 0 close or not to be judged, -1 wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.grading.answers import Case
from finqa_cli.types import Rewards
from finqa_plugins.rewards.cases import given, ternary
from finqa_plugins.rewards.reward_comparison import compare, is_prose
from finqa_plugins.rewards.solutions import read_solution
from finqa_plugins.rewards.spec import Format, Strict, TernaryMapping, Tolerances
from finqa_plugins.rewards.spec_file import resolve

_OPEN_QUESTION = re.compile(r"\b(?:why|how|explain)\b", re.IGNORECASE)
_LEAST_EXPLANATION = 11


class TernaryConfig(Strict):
    """Options of the ternary reward; those given win over the file."""

    spec: Path | None = Field(default=None, description="A reward_spec.yaml.")
    tolerances: Tolerances = Field(default=Tolerances(), description="{numerical=..., percentage=...}: what is close.")
    ternary_mapping: TernaryMapping = Field(default=TernaryMapping(), description="{exact=..., close=..., wrong=...}")
    format: Format = Field(default="json", description="Replies in JSON, or `plain`: the solution is the answer.")


class Ternary(Reward):
    """Three values. The parts are `exact`, `close` and `wrong`: the value that was given, and 0 for the others."""

    def __init__(self, config: TernaryConfig) -> None:
        """Raises ConfigError when the file is missing or wrong."""
        self._spec = resolve(config, config.spec)

    def score(self, request: RewardRequest) -> Rewards:
        """Exact, close or wrong.

        Close is also any answer where the truth is empty, and more than 10 characters in answer to a why, how or
        explain question whose truth is text: neither can be judged.
        """
        reply = read_solution(request.solution, self._spec.format)
        if not reply.ok:
            return self._rewards("wrong", reply.error)
        answer = reply.answer_text
        if not request.truth.strip():
            return self._rewards("close", "no truth to compare with")
        match = compare(answer, request.truth)
        if match.exact:
            return self._rewards("exact", "exact")
        if match.within(self._spec.tolerances):
            return self._rewards("close", "within the tolerance")
        if len(answer) >= _LEAST_EXPLANATION and _is_open(request):
            return self._rewards("close", "an explanation, which is not judged")
        return self._rewards("wrong", "wrong" if answer else "no answer")

    def spec(self) -> dict[str, Any]:
        """The specification in force, JSON-ready."""
        return self._spec.model_dump(mode="json")

    def cases(self) -> Sequence[Case]:
        """Built-in tests under this specification, and those of its file."""
        return (*ternary(self._spec), *given(self._spec, "ternary"))

    def _rewards(self, level: str, why: str) -> Rewards:
        values: dict[str, float] = self._spec.ternary_mapping.model_dump()
        parts = {name: value if name == level else 0.0 for name, value in values.items()}
        return Rewards(total=values[level], components=parts, explanation=why)


def _is_open(request: RewardRequest) -> bool:
    question = request.extra_info.get("question") or request.task.prompt
    return is_prose(request.truth) and bool(_OPEN_QUESTION.search(str(question)))
