"""Evaluations during training on a file: their results, and the interface of held-out questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from finqa_cli.contracts import Learner
from finqa_cli.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRates:
    """Rates over the answers to held-out questions. Faults count in no rate; all rates are None without graded answers.

    Attributes:
        questions: Number of graded answers.
        faults: Number of attempts that ended in faults.
        parse_rate: Share of answers in the right format: every tool call could be parsed, or the reply has the
            requested format. None if no format is requested.
        accuracy: Share of right answers.
        reward_mean: Mean total reward.
        cut_replies: See `EvalReport`.
    """

    questions: int
    faults: int
    parse_rate: float | None
    accuracy: float | None
    reward_mean: float | None
    cut_replies: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        step: Number of optimizer steps of the policy.
        samples: Rates over the policy's answers to held-out questions; None if there were no questions.
    """

    step: int
    samples: SampleRates | None = None


class Ask(Protocol):
    """Lets the learner's policy answer held-out questions."""

    async def __call__(self, learner: Learner, step: int) -> SampleRates | None:
        """Play the questions with the weights of the learner after `step` steps; None if a stop was requested."""
        ...

    async def expect_seconds(self, samples: Sequence[Sample]) -> float:
        """Return how long the questions will take, by one measured turn of the policy.

        Args:
            samples: Demonstrations, whose lengths the episodes probably have.
        """
        ...
