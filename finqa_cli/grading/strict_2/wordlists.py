"""Sets of words, written as text."""

from __future__ import annotations

NUMERAL = r"[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?"
"""Pattern of a number without a sign, as prose writes it."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


DOWN = word_set(
    "decrease decreases decreased decreasing decline declines declined declining fall falls fell fallen "
    "drop drops dropped reduction reduced loss losses lost outflow outflows contraction contracted shrank "
    "shrunk shrink shrinkage deficit shortfall down lower negative minus slipped slid plunged tumbled "
    "sank lost narrowed narrower compressed eased softened slumped retreated shortened deteriorated worsened drain "
    "downturn downward dip dipped less fewer weaker outflowing unfavorable unfavourable "
    "trailed trails lagged underperformed"
)
UP = word_set(
    "increase increases increased rise rises rose risen grew grow grown gain gains gained up higher "
    "inflow inflows jumped climbed surged widened widening wider soared strengthened broadened lengthened expanded "
    "expansion improvement improved advanced positive "
    "upward plus favorable favourable"
)
