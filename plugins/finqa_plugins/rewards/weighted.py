"""The component reward of the RL-LLM FinQA pipeline: exact or numerical, program, and a penalty on bad format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.grading.answers import Case, Reply
from finqa_cli.types import Rewards
from finqa_plugins.rewards.cases import given, weighted
from finqa_plugins.rewards.program_reward import program_share
from finqa_plugins.rewards.reward_comparison import Match, compare
from finqa_plugins.rewards.solutions import read_solution
from finqa_plugins.rewards.spec import Decay, Format, Strict, Tolerances, Weights, weights_of
from finqa_plugins.rewards.spec_file import resolve


class WeightedConfig(Strict):
    """Options of the weighted reward; those given win over the file."""

    spec: Path | None = Field(default=None, description="A reward_spec.yaml; `finqa rewards show weighted` prints one.")
    weights: Annotated[Weights, BeforeValidator(weights_of)] = Field(
        default=Weights(), description="'exact=1.0,numerical=0.8,program=0.3,format=-0.2', any of them."
    )
    tolerances: Tolerances = Field(default=Tolerances(), description="{numerical=..., percentage=...}: what is close.")
    decay: Decay = Field(default="linear", description="The numerical part falls to 0 at the tolerance, or `flat`.")
    format: Format = Field(default="json", description="Replies in JSON, or `plain`: the solution is the answer.")


class Weighted(Reward):
    """The parts `exact`, `numerical`, `program` and `format` as paid; they sum to the total.

    With `format: plain` there are only `exact` and `numerical`: no program is written and nothing can be malformed.
    """

    def __init__(self, config: WeightedConfig) -> None:
        """Raises ConfigError when the file is missing or wrong."""
        self._spec = resolve(config, config.spec)

    def score(self, request: RewardRequest) -> Rewards:
        """Pays what the answer and its program earn; a malformed reply earns its penalty and nothing else."""
        reply = read_solution(request.solution, self._spec.format)
        match = compare(reply.answer_text, request.truth)
        weights = self._spec.weights
        parts = {"exact": weights.exact * match.exact, "numerical": weights.numerical * self._closeness(match)}
        if self._spec.format == "json":
            parts["program"] = weights.program * program_share(reply.program, request)
            parts["format"] = 0.0 if reply.ok else weights.format
        why = _explanation(reply, match, parts) if request.truth.strip() or not reply.ok else "no truth to compare with"
        return Rewards(total=sum(parts.values()), components=parts, explanation=why)

    def spec(self) -> dict[str, Any]:
        """The specification in force, JSON-ready."""
        return self._spec.model_dump(mode="json")

    def cases(self) -> Sequence[Case]:
        """Built-in tests under this specification, and those of its file."""
        return (*weighted(self._spec), *given(self._spec, "weighted"))

    def _closeness(self, match: Match) -> float:
        """1 for what is close, falling to 0 at the tolerance when the decay is linear; 0 for what is exact."""
        tolerances = self._spec.tolerances
        if match.exact or match.relative is None or not match.within(tolerances):
            return 0.0
        return 1.0 if self._spec.decay == "flat" else 1.0 - match.relative / match.tolerance(tolerances)


def _explanation(reply: Reply, match: Match, parts: dict[str, float]) -> str:
    """One line that does not tell the truth."""
    if not reply.ok:
        return f"malformed: {reply.error}"
    answer = (
        "exact" if match.exact else "close" if parts["numerical"] else "wrong" if reply.answer_text else "no answer"
    )
    return f"{answer}, program {parts['program']:g}" if reply.program else answer
