"""The prompt of an episode: its sections, and which of them a combination of inputs keeps.

The combinations are those of the published preprocessing (`launchers/fin_text_qa/preprocess_data.py` of asFeng/finqa at
f34a2a5), each of which includes the one before: `question_only` is company and question, `question_fundamental` adds
macroeconomic and fundamental data, `question_news` news, and `question_full` prices. Here sections are only left
out: a table of prices is not shortened to close prices, and a section that a file lacks is not added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from finqa_cli.types import Message, Prompt
from finqa_plugins.environments.forecast.config import ForecastConfig, Inputs, QuestionType
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow

QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

ANSWER = "Answer the question about a share. End with the answer alone between tags: <answer>...</answer>"
CONFIDENCE = "Behind it say how sure you are that it is right, from 0 to 1: <confidence>...</confidence>"
NO_NEWS = "No recent news available."

_COMPANY, _MACRO, _FUNDAMENTAL = "Company Information", "Macroeconomic Indicators", "Fundamental Data"
_NEWS, _PRICES, _QUESTION = "Recent News", "Historical Close Prices", "Question"
_ANY_NEWS = frozenset({_NEWS, "News"})
_ANY_PRICES = frozenset({_PRICES, "Historical Price Data"})
_LEFT_OUT: Mapping[Inputs, frozenset[str]] = {
    "question_only": _ANY_PRICES | _ANY_NEWS | {_MACRO, _FUNDAMENTAL},
    "question_fundamental": _ANY_PRICES | _ANY_NEWS,
    "question_news": _ANY_PRICES,
}
_NOT_NEEDED: Mapping[QuestionType, frozenset[str]] = {
    "pure_forecast": frozenset({_MACRO, _FUNDAMENTAL, _NEWS}),
    "event_detection": frozenset({_MACRO, _FUNDAMENTAL, _NEWS}),
    "multi_signal_reasoning": frozenset({_NEWS}),
    "macro_fundamental": frozenset({_NEWS}),
    "news_sentiment": frozenset({_MACRO, _FUNDAMENTAL}),
    "analysis": frozenset(),
}
"""Sections that embedded questions leave out; never prices, because their jitter shows the uncertainty."""

_HEADING = re.compile(r"^=== (?P<name>[^=(\n]{1,100}?) ?(?:\([^=)\n]{0,100}\))? ===[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """The facts that are known when the question is asked.

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


def render(facts: PromptFacts) -> str:
    """Render all sections, in the order of the published prompts."""
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
    """Return the prompt without the sections that the inputs leave out; a text without headings is unchanged."""
    return _without(text, _LEFT_OUT.get(inputs, frozenset()))


def needed(text: str, question_type: QuestionType) -> str:
    """Return an embedded prompt without the sections that are irrelevant to questions of this type."""
    return _without(text, _NOT_NEEDED[question_type])


def _without(text: str, left_out: frozenset[str]) -> str:
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


def opening(row: ForecastRow, config: ForecastConfig) -> Prompt:
    """Return the row's messages with the wanted sections and any missing instructions, without tools."""
    messages = [
        replace(message, content=reduced(message.content, config.inputs)) if message.role == "user" else message
        for message in row.messages
    ]
    said = " ".join(message.content for message in messages)
    asked = [ANSWER] if "<answer>" not in said else []
    asked += [CONFIDENCE] if config.asks_confidence and "<confidence>" not in said else []
    if asked and messages[0].role == "system":
        messages[0] = replace(messages[0], content="\n".join((messages[0].content, *asked)))
    elif asked:
        messages.insert(0, Message(role="system", content="\n".join(asked)))
    return Prompt(messages=tuple(messages), tools=())
