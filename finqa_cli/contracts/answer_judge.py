"""Contract of a judge, which decides about answers that no fixed rule can read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's decision about one answer.

    Attributes:
        right: Whether the answer is right.
        reason: The reason, in one line that does not contain the right answer.
        facts: JSON values for the record of the attempt: `judge`, `right`, `reason`, `cached`, and `usage` with the
            figures of `Engine.usage`.
    """

    right: bool
    reason: str
    facts: Mapping[str, Any]


class AnswerJudge(ABC):
    """Base class of judges. An environment gets one in its context and asks it about answers that it cannot read.

    Attributes:
        spent: What the judge used in this process, also for judgements that no attempt has: `requests`,
            `prompt_tokens`, `completion_tokens` and `cost_usd`.
    """

    spent: Mapping[str, float] = MappingProxyType({})

    @property
    @abstractmethod
    def name(self) -> str:
        """Who judges, for the names of results: `openai gpt-5`."""

    @abstractmethod
    async def start(self) -> None:
        """Check that the judge can be reached. Idempotent.

        Raises:
            FinqaError: It cannot: its key, its model or its address is wrong.
        """

    @abstractmethod
    async def judge(self, *, question: str, truth: str, answer: str) -> Judgement:
        """Decide whether an answer is right. The same question, truth and answer are paid for once.

        Raises:
            EnvironmentFault: The judge did not answer, or gave no verdict. This is never a verdict.
            FinqaError: Every request would fail: the key, the model, the account or the address is wrong.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free what the judge uses. Idempotent."""
