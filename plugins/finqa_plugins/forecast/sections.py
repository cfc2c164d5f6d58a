"""The sections of a prompt: what is told beside the question, and which of it a combination of inputs keeps.

Company, prices and question are always there. Which sections the published names `question_fundamental` and
`question_news` stand for is in no public file; here the first adds macroeconomic and fundamental data, the second news.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from finqa_plugins.forecast.config import Inputs, QuestionType

QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

NO_NEWS = "No recent news available."

_COMPANY, _MACRO, _FUNDAMENTAL = "Company Information", "Macroeconomic Indicators", "Fundamental Data"
_NEWS, _PRICES, _QUESTION = "Recent News", "Historical Close Prices", "Question"
_LEFT_OUT: dict[Inputs, frozenset[str]] = {
    "question_only": frozenset({_MACRO, _FUNDAMENTAL, _NEWS}),
    "question_fundamental": frozenset({_NEWS}),
    "question_news": frozenset({_MACRO, _FUNDAMENTAL}),
}
_NEEDED: dict[str, Inputs] = {
    "multi_signal_reasoning": "question_fundamental",
    "macro_fundamental": "question_fundamental",
    "news_sentiment": "question_news",
    "analysis": "question_full",
}
_HEADING = re.compile(r"^=== (?P<name>[^=(\n]{1,100}?) ?(?:\([^=)\n]{0,100}\))? ===[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known when the question is asked.

    Attributes:
        closes: [days] Close prices, the last one of the day of the question.
        news: Headlines; empty when there are none.
    """

    company: str
    macro: str
    fundamental: str
    news: tuple[str, ...]
    closes: tuple[float, ...]
    question: str


def render(facts: Facts) -> str:
    """All sections, in the order of the published prompts."""
    prices = ", ".join(f"{close:.2f}" for close in facts.closes)
    parts = (
        (_COMPANY, facts.company),
        (_MACRO, facts.macro),
        (_FUNDAMENTAL, facts.fundamental),
        (_NEWS, "\n".join(f"- {line}" for line in facts.news) or NO_NEWS),
        (f"{_PRICES} ({len(facts.closes)} days)", f"Close prices: {prices}"),
        (_QUESTION, facts.question),
    )
    return "\n\n".join(f"=== {name} ===\n{text}" for name, text in parts)


def reduced(text: str, inputs: Inputs) -> str:
    """The prompt without the sections that the inputs leave out; a text without such headings stays as it is."""
    left_out = _LEFT_OUT.get(inputs, frozenset())
    headings: Sequence[re.Match[str]] = list(_HEADING.finditer(text))
    if not left_out or not headings:
        return text
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    kept = [text[: headings[0].start()]]
    kept += [
        text[heading.start() : end]
        for heading, end in zip(headings, ends, strict=True)
        if heading["name"].strip() not in left_out
    ]
    return "".join(kept).rstrip()


def inputs_of(question_type: str) -> Inputs:
    """The least inputs that a question of this type can be answered from."""
    return _NEEDED.get(question_type, "question_only")
