"""The reward `graded`: the verdict of a grading profile, in any environment, to judge again by other rules."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.grading import grade
from finqa_cli.types import Rewards
from finqa_plugins.rewards.spec import Format, Strict, read_solution


class GradedConfig(Strict):
    """Options of the graded reward."""

    profile: Literal["openenv", "strict"] = Field(default="strict", description="Rules of finqa_cli.grading.")
    format: Format = Field(default="plain", description="The solution is the answer itself, or `json` that holds it.")


class Graded(Reward):
    """1 when the answer is right, else 0; the part has the profile's name."""

    def __init__(self, config: GradedConfig) -> None:
        self.config = config

    def score(self, request: RewardRequest) -> Rewards:
        """Return the profile's verdict."""
        reply = read_solution(request.solution, self.config.format)
        if not reply.ok:
            return Rewards(total=0.0, components={self.config.profile: 0.0}, explanation=reply.error)
        verdict = grade(reply.answer, request.truth, self.config.profile)
        return Rewards(
            total=verdict.reward, components={self.config.profile: verdict.reward}, explanation=verdict.explanation
        )

    def spec(self) -> dict[str, Any]:
        """Return the options, JSON-ready."""
        return self.config.model_dump(mode="json")
