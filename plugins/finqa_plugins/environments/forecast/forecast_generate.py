"""Generates the embedded tasks: invented shares whose future follows from the prompt, except for known noise.

An uncertainty u is sampled for every row. The facts in the prompt contain one signal, which depends on the type of the
question. With probability 1 - u the truth is the signal; otherwise it is sampled evenly from `SceneQuestion.answers`.
So a policy that answers the signal is right with a known probability, `extra_info.signal_probability`. This is the best
accuracy and the calibrated confidence. The more uncertain a row, the more its prices jitter, so that a policy can see
it; with `track_record` the prompt states the probability in whole percent.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finqa_cli.types import Message
from finqa_plugins.environments._task_files.task_rows import TaskData, embedded_data
from finqa_plugins.environments.forecast.config import ForecastConfig, QuestionType
from finqa_plugins.environments.forecast.forecast_prompt import QUESTION_TYPES, PromptFacts, needed, reduced, render
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow, divide

SHARES = {"dev": 0.15, "test": 0.15}
_LETTERS = "ABCDEFGHIJKLMNOPRSTUVWXYZ"
_FIRST_DAY = datetime.date(2024, 1, 2)


def generate(config: ForecastConfig) -> TaskData[ForecastRow]:
    """Generate the embedded tasks, divided by company; the same for the same options.

    More companies or questions do not change the others.
    """
    rows = tuple(_rows(config))
    content = json.dumps([[row.id, row.messages[-1].content, row.truths, row.uncertainty] for row in rows])
    return embedded_data(divide(rows, SHARES, config), content)


def _rows(config: ForecastConfig) -> Iterator[ForecastRow]:
    types: Sequence[QuestionType] = config.types or QUESTION_TYPES
    for place, ticker in enumerate(_tickers(config.companies, config.seed)):
        for number in range(config.questions):
            rng = random.Random(f"forecast:{config.seed}:{ticker}:{number}")
            date = _FIRST_DAY + datetime.timedelta(days=7 * number)
            sector = SECTORS[place % len(SECTORS)]
            yield _row(config, types[number % len(types)], f"{ticker}-{number + 1}", sector, date.isoformat(), rng)


def _row(
    config: ForecastConfig, question_type: QuestionType, identity: str, sector: str, date: str, rng: random.Random
) -> ForecastRow:
    ticker = identity.partition("-")[0]
    uncertainty = _uncertainty(config, rng)
    scene = invent_scene(rng, uncertainty)
    asked = ask(question_type, scene, ticker)
    truth = asked.signal if rng.random() >= uncertainty else rng.choice(asked.answers)
    probability = asked.probability(uncertainty)
    company = f"{ticker}, {sector}, {date}"
    if config.track_record:
        company += f"\nTrack record: {probability:.0%} of such signals came true"
    text = render(
        PromptFacts(
            company=company,
            macro=f"Interest rates: {scene.rates}",
            fundamental=f"Revenue growth: {scene.growth:+d}%",
            news=(scene.headline,) if scene.headline else (),
            closes=scene.closes,
            question=asked.question,
        )
    )
    shown = needed(text, question_type) if config.inputs == "auto" else reduced(text, config.inputs)
    return ForecastRow(
        id=identity,
        messages=(Message(role="user", content=shown),),
        question=asked.question,
        truths=(truth,),
        question_type=question_type,
        uncertainty=uncertainty,
        ticker=ticker,
        date=date,
        extra={"signal": asked.signal, "signal_probability": probability},
    )


def _uncertainty(config: ForecastConfig, rng: random.Random) -> float:
    if config.noise is None:
        return round(rng.random(), 2)
    return rng.choice(config.noise) if isinstance(config.noise, tuple) else config.noise


def _tickers(count: int, seed: int) -> list[str]:
    rng = random.Random(f"forecast:{seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(_LETTERS, k=3))] = None
    return list(found)


SECTORS = ("software", "energy", "retail", "banking", "health")
DAYS = 4
"""Number of close prices in a prompt; few, so that prompts are short."""

_JITTER = 4.0
_HORIZONS = range(3, 11)
_HEADLINES = {
    "positive": ("Orders reach a record", "Analysts raise their estimates", "A rival leaves the market"),
    "negative": ("A large customer leaves", "Analysts cut their estimates", "A recall is announced"),
    "neutral": ("The annual meeting is held", "A new office opens", "The board meets as planned"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The facts of a prompt, without the question.

    Attributes:
        closes: [DAYS] whole prices; the last differs from the first.
        growth: Growth of the revenue, in percent; never 0.
        rates: rising or falling.
        headline: One line of news.
        sentiment: Sentiment of the headline.
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
        """Whether the prices rise from the first to the last."""
        return self.closes[-1] > self.closes[0]


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A question about a scene.

    Attributes:
        question: Text of the question.
        signal: The most likely answer.
        answers: Answers from which noise samples the truth evenly; the signal may be among them.
    """

    question: str
    signal: str
    answers: tuple[str, ...]

    def probability(self, uncertainty: float) -> float:
        """Return the probability that the truth is the signal."""
        return 1.0 - uncertainty * (1.0 - self.answers.count(self.signal) / len(self.answers))


def invent_scene(rng: random.Random, uncertainty: float) -> Scene:
    """Invent a scene whose prices follow a line, with jitter proportional to the uncertainty."""
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


def ask(question_type: QuestionType, scene: Scene, ticker: str) -> SceneQuestion:
    """Return the question of a type about a scene."""
    ahead = f"over the next {scene.horizon} trading days"
    if question_type == "pure_forecast":
        change = (scene.closes[-1] - scene.closes[0]) / (DAYS - 1) * scene.horizon / scene.closes[-1] * 100
        others = tuple(f"{change * factor:+.1f}%" for factor in (-1.0, -2.0, 0.5, 2.0))
        return SceneQuestion(f"By what percentage will {ticker} change {ahead}?", f"{change:+.1f}%", others)
    if question_type == "event_detection":
        signal = "yes" if scene.rises else "no"
        return SceneQuestion(f"Will {ticker} close higher {ahead}, yes or no?", signal, ("yes", "no"))
    if question_type == "multi_signal_reasoning":
        agree = scene.rises == (scene.growth > 0)
        signal = ("scale in" if scene.rises else "scale out") if agree else "stay flat"
        question = f"Trend and revenue of {ticker} taken together: scale in, scale out or stay flat {ahead}?"
        return SceneQuestion(question, signal, ("scale in", "scale out", "stay flat"))
    if question_type == "macro_fundamental":
        question = f"Which way does revenue growth take {ticker} {ahead}, up or down?"
        return SceneQuestion(question, "up" if scene.growth > 0 else "down", ("up", "down"))
    if question_type == "news_sentiment":
        question = f"What will sentiment on {ticker} be {ahead}: positive, negative or neutral?"
        return SceneQuestion(question, scene.sentiment, ("positive", "negative", "neutral"))
    up, down = "Up. The trend supports it.", "Down. The trend weighs on it."
    return SceneQuestion(
        f"Analyse {ticker} {ahead}. Name the direction first.", up if scene.rises else down, (up, down)
    )
