"""Invented scenes, and what each type of question asks about one: its signal, and all answers that it may have."""

from __future__ import annotations

import random
from dataclasses import dataclass

from finqa_plugins.environments.forecast.config import QuestionType

SECTORS = ("software", "energy", "retail", "banking", "health")
DAYS = 4
"""Close prices that are shown: few, so that prompts are short."""

_JITTER = 4.0
_HORIZONS = range(3, 11)
_HEADLINES = {
    "positive": ("Orders reach a record", "Analysts raise their estimates", "A rival leaves the market"),
    "negative": ("A large customer leaves", "Analysts cut their estimates", "A recall is announced"),
    "neutral": ("The annual meeting is held", "A new office opens", "The board meets as planned"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the facts beside the question are.

    Attributes:
        closes: [DAYS] whole prices; the last differs from the first.
        growth: Of the revenue, in percent; never 0.
        rates: rising or falling.
        headline: One line of news.
        sentiment: Of the headline.
        horizon: Trading days that the question looks ahead.
    """

    closes: tuple[float, ...]
    growth: int
    rates: str
    headline: str
    sentiment: str
    horizon: int

    @property
    def rises(self) -> bool:
        """The prices do, from the first to the last."""
        return self.closes[-1] > self.closes[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about a scene.

    Attributes:
        signal: The likeliest answer.
        answers: What else the truth may be, drawn evenly where noise decides; the signal may be among them.
    """

    question: str
    signal: str
    answers: tuple[str, ...]

    def probability(self, uncertainty: float) -> float:
        """That the truth is the signal."""
        return 1.0 - uncertainty * (1.0 - self.answers.count(self.signal) / len(self.answers))


def invent_scene(rng: random.Random, uncertainty: float) -> Scene:
    """A scene whose prices follow a line, with more jitter the more uncertain it is."""
    first, step = rng.randint(50, 150), rng.choice((-3, -2, -1, 1, 2, 3))
    jitter = [round(rng.uniform(-1.0, 1.0) * uncertainty * _JITTER) for _ in range(DAYS)]
    closes = [float(first + step * day + jitter[day]) for day in range(DAYS)]
    if closes[-1] == closes[0]:
        closes[-1] += step
    sentiment = rng.choice(sorted(_HEADLINES))
    return Scene(
        closes=tuple(closes),
        growth=rng.choice((-1, 1)) * rng.randint(1, 9),
        rates=rng.choice(("rising", "falling")),
        headline=rng.choice(_HEADLINES[sentiment]),
        sentiment=sentiment,
        horizon=rng.choice(_HORIZONS),
    )


def ask(question_type: QuestionType, scene: Scene, ticker: str) -> Asked:
    """The question of a type about a scene."""
    ahead = f"over the next {scene.horizon} trading days"
    if question_type == "pure_forecast":
        change = (scene.closes[-1] - scene.closes[0]) / (DAYS - 1) * scene.horizon / scene.closes[-1] * 100
        others = tuple(f"{change * factor:+.1f}%" for factor in (-1.0, -2.0, 0.5, 2.0))
        return Asked(
            question=f"By what percentage will {ticker} change {ahead}?", signal=f"{change:+.1f}%", answers=others
        )
    if question_type == "event_detection":
        return _of(f"Will {ticker} close higher {ahead}, yes or no?", "yes" if scene.rises else "no", ("yes", "no"))
    if question_type == "multi_signal_reasoning":
        agree = scene.rises == (scene.growth > 0)
        signal = ("scale in" if scene.rises else "scale out") if agree else "stay flat"
        question = f"Trend and revenue of {ticker} taken together: scale in, scale out or stay flat {ahead}?"
        return _of(question, signal, ("scale in", "scale out", "stay flat"))
    if question_type == "macro_fundamental":
        question = f"Which way does revenue growth take {ticker} {ahead}, up or down?"
        return _of(question, "up" if scene.growth > 0 else "down", ("up", "down"))
    if question_type == "news_sentiment":
        question = f"What will sentiment on {ticker} be {ahead}: positive, negative or neutral?"
        return _of(question, scene.sentiment, ("positive", "negative", "neutral"))
    up, down = (
        "Up. The trend supports it.",
        "Down. The trend weighs on it.",
    )
    question = f"Analyse {ticker} {ahead}. Name the direction first."
    return _of(question, up if scene.rises else down, (up, down))


def _of(question: str, signal: str, answers: tuple[str, ...]) -> Asked:
    return Asked(question=question, signal=signal, answers=answers)
