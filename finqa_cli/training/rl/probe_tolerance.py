"""How far an engine's log-probabilities may be from the learner's before rounding does not explain it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

OUTLIERS = 0.05
"""Share of the tokens, the most different ones, that the typical difference leaves out."""

MULTIPLE = 2.0
FLOOR, CEILING = 0.04, 0.2
"""Nats, of the tolerance of the typical difference. vLLM and a trainer in bfloat16 are published to differ by 0.031 to
0.041 nats RMS (ServiceNow/Fast-LLM, pull request 525). Beyond the ceiling it is not rounding."""

LARGEST = 3.0
"""Nats that any token may differ by where the tolerance is measured: a probability that is 20 times as large. In
bfloat16 single unlikely tokens differ by more than 1 nat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two rows of log-probabilities are apart (nats); infinite where values are not finite.

    Attributes:
        typical: Mean of the absolute differences without the largest `OUTLIERS`, at least one.
        largest: The largest one.
        tokens: How many were compared.
    """

    typical: float
    largest: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What rounding explains (nats).

    Attributes:
        typical: Of the typical difference.
        largest: Of the largest one.
        source: Where the values come from, in words.
    """

    typical: float
    largest: float
    source: str

    @classmethod
    def fixed(cls, nats: float) -> Tolerance:
        """No token may differ by more."""
        return cls(typical=nats, largest=nats, source="engine.options.probe_tolerance, or float32 on both sides")

    @classmethod
    def measured(cls, found: Difference, version: int) -> Tolerance:
        """`MULTIPLE` times what was found of a version, within `FLOOR` and `CEILING`."""
        typical = min(max(MULTIPLE * found.typical, FLOOR), CEILING)
        source = f"measured on version {version}, which differed by {found.typical:.3g}"
        return cls(typical=typical, largest=LARGEST, source=source)

    def explains(self, found: Difference) -> bool:
        """Whether rounding may be all that there is."""
        return found.typical <= self.typical and found.largest <= self.largest


WIDEST = Tolerance(typical=CEILING, largest=LARGEST, source="the most that rounding explains")


def compare(left: Sequence[float], right: Sequence[float]) -> Difference:
    """The difference of two rows of equal length [N], which is at least 1."""
    gaps = sorted(_gap(one, other) for one, other in zip(left, right, strict=True))
    kept = gaps[: max(1, len(gaps) - max(1, math.ceil(OUTLIERS * len(gaps))))]
    return Difference(typical=math.fsum(kept) / len(kept), largest=gaps[-1], tokens=len(gaps))


def _gap(left: float, right: float) -> float:
    gap = abs(left - right)
    return gap if math.isfinite(gap) else math.inf
