"""The embedded tasks: invented shares whose future follows what is shown, but for a known share of noise.

For every row an uncertainty u is drawn. What the prompt shows has one signal, as `signals.py` reads it; the truth is
the signal with probability 1 - u, and else drawn evenly from all answers. So a policy that answers the signal is right
with a probability that is known, `extra_info.signal_probability`: the best accuracy, and the confidence that is
calibrated. The more uncertain a row, the more its prices jitter, so that a policy can tell; with `track_record` the
prompt says it in so many words, to a whole percent.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import random
from collections.abc import Iterator, Sequence

from finqa_cli.types import DataInfo, Message
from finqa_plugins.environments.forecast.config import ForecastConfig, QuestionType
from finqa_plugins.environments.forecast.date_splits import ForecastData, divide
from finqa_plugins.environments.forecast.forecast_rows import Row
from finqa_plugins.environments.forecast.sections import QUESTION_TYPES, Facts, needed, reduced, render
from finqa_plugins.environments.forecast.signals import SECTORS, Scene, ask, invent_scene

SHARES = {"dev": 0.15, "test": 0.15}
_LETTERS = "ABCDEFGHIJKLMNOPRSTUVWXYZ"
_FIRST_DAY = datetime.date(2024, 1, 2)


def generate(config: ForecastConfig) -> ForecastData:
    """The embedded tasks, divided by company; the same for the same options.

    Asking for more companies or questions leaves the others as they are.
    """
    rows = tuple(_rows(config))
    content = json.dumps([[row.id, row.messages[-1].content, row.truths, row.uncertainty] for row in rows])
    digest = f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
    return ForecastData(info=DataInfo(name="embedded", digest=digest), rows=divide(rows, SHARES, config))


def _rows(config: ForecastConfig) -> Iterator[Row]:
    types: Sequence[QuestionType] = config.types or QUESTION_TYPES
    for place, ticker in enumerate(_tickers(config.companies, config.seed)):
        for number in range(config.questions):
            rng = random.Random(f"forecast:{config.seed}:{ticker}:{number}")
            date = _FIRST_DAY + datetime.timedelta(days=7 * number)
            sector = SECTORS[place % len(SECTORS)]
            yield _row(config, types[number % len(types)], f"{ticker}-{number + 1}", sector, date.isoformat(), rng)


def _row(
    config: ForecastConfig, question_type: QuestionType, identity: str, sector: str, date: str, rng: random.Random
) -> Row:
    ticker = identity.partition("-")[0]
    uncertainty = _uncertainty(config, rng)
    scene = invent_scene(rng, uncertainty)
    asked = ask(question_type, scene, ticker)
    truth = asked.signal if rng.random() >= uncertainty else rng.choice(asked.answers)
    probability = asked.probability(uncertainty)
    company = f"{ticker}, {sector}, {date}"
    if config.track_record:
        company += f"\nTrack record: {probability:.0%} of such signals came true"
    text = render(_facts(scene, company, asked.question))
    shown = needed(text, question_type) if config.inputs == "auto" else reduced(text, config.inputs)
    return Row(
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


def _facts(scene: Scene, company: str, question: str) -> Facts:
    return Facts(
        company=company,
        macro=f"Interest rates: {scene.rates}",
        fundamental=f"Revenue growth: {scene.growth:+d}%",
        news=(scene.headline,) if scene.headline else (),
        closes=scene.closes,
        question=question,
    )


def _tickers(count: int, seed: int) -> list[str]:
    rng = random.Random(f"forecast:{seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(_LETTERS, k=3))] = None
    return list(found)
