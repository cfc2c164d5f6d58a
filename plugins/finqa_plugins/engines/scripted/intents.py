"""Reads a question: which calculation it asks for, of which rows, in which years.

The patterns mirror the wordings of the generator (`finqa_cli.data.generated.questions`); a test asks thousands of
generated questions. A question in other words gets a sensible guess: the rows and years that it mentions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a question asks.

    Attributes:
        kind: A question type of the generator; `lookup` when nothing else was recognised.
        phrases: Line items in words, one or two; empty when none was recognised.
        years: The years in the order in which they were said.
    """

    kind: str
    phrases: tuple[str, ...]
    years: tuple[str, ...]

    @property
    def is_percentage(self) -> bool:
        """The wording asks for a rate that people like to write times 100."""
        return self.kind in ("growth_rate", "margin")


_YEAR = r"(?:19|20)\d\d"
_FROM_TO = rf"from (?P<old>{_YEAR}) to (?P<new>{_YEAR})"
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("growth_rate", rf"what was the growth rate of (?P<a>.+) {_FROM_TO}\?"),
    ("growth_rate", rf"by what percentage did (?P<a>.+) change {_FROM_TO}\?"),
    ("growth_rate", rf"what was the percentage change in (?P<a>.+) {_FROM_TO}\?"),
    ("change", rf"what was the change in (?P<a>.+) {_FROM_TO}\?"),
    ("change", rf"by how much did (?P<a>.+) change between (?P<old>{_YEAR}) and (?P<new>{_YEAR})\?"),
    ("ratio", rf"what was the ratio of (?P<a>.+) to (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("ratio", rf"what was (?P<a>.+) as a proportion of (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("margin", rf"what was (?P<a>.+) as a percentage of (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("margin", rf"what percentage margin on (?P<b>.+) was (?P<a>.+) in (?P<new>{_YEAR})\?"),
    ("average", rf"what was the average (?P<a>.+) {_FROM_TO}\?"),
    ("average", rf"what was (?P<a>.+) on average over (?P<old>{_YEAR}) to (?P<new>{_YEAR})\?"),
    ("sum", rf"what was the sum of (?P<a>.+) and (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("sum", rf"what did (?P<a>.+) and (?P<b>.+) add up to in (?P<new>{_YEAR})\?"),
    ("comparison", rf"was (?P<a>.+) higher in (?P<new>{_YEAR}) than in (?P<old>{_YEAR})\?"),
    ("comparison", rf"did (?P<a>.+) increase {_FROM_TO}\?"),
    ("multi_value", rf"what was (?P<a>.+) in each of (?P<old>{_YEAR}) and (?P<new>{_YEAR})\?"),
    ("multi_value", rf"list (?P<a>.+) for (?P<old>{_YEAR}) and (?P<new>{_YEAR})\."),
    ("lookup", rf"how much was (?P<a>.+) in fiscal (?P<new>{_YEAR})\?"),
    ("lookup", rf"what amount of (?P<a>.+) was reported for (?P<new>{_YEAR})\?"),
    ("lookup", rf"what was (?P<a>.+) in (?P<new>{_YEAR})\?"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
_GUESSES: tuple[tuple[str, str], ...] = (
    ("growth_rate", r"growth|percent\w* (?:change|increase|decrease|decline)|by what percent"),
    ("average", r"\baverage\b|\bmean\b"),
    ("change", r"\bchange\b|\bincrease\b|\bdecrease\b|\bdifference\b"),
)


def parse_question(question: str) -> Intent:
    """The intent of a question; any text gives one."""
    text = " ".join(question.split())
    for kind, pattern in _COMPILED:
        if match := pattern.fullmatch(text):
            found = match.groupdict()
            phrases = tuple(found[name] for name in ("a", "b") if found.get(name))
            years = tuple(found[name] for name in ("old", "new") if found.get(name))
            return Intent(kind=kind, phrases=phrases, years=years)
    years = tuple(sorted(set(re.findall(rf"\b{_YEAR}\b", text))))
    guesses = (kind for kind, pattern in _GUESSES if re.search(pattern, text, re.IGNORECASE))
    kind = next(guesses, "lookup") if len(years) > 1 else "lookup"
    return Intent(kind=kind, phrases=(), years=years[:1] + years[1:][-1:])
