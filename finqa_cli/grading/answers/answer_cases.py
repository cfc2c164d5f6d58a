"""Examples of answers with the reward that they must get: tests of a reward, which it brings itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of a reward.

    Attributes:
        name: Says what is tested.
        expected: Part of the reward, or `total`, -> its value. Parts that are not named may have any.
        solution: What the policy answered.
        truth: The right answer, and `program` and `table` as in a reward's request.
        question: As the policy read it.
    """

    name: str
    expected: Mapping[str, float]
    solution: str
    truth: str
    program: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    question: str = ""
