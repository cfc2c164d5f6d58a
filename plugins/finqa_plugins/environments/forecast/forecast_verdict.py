"""The verdict on a reply.

| part                | what                                                           |
| ------------------- | -------------------------------------------------------------- |
| `score`             | of the profile, 0 to 1; of several accepted answers the best,  |
|                     | in `versatile` the first                                       |
| `correct`           | the score is at least `correct_at`                             |
| the question type   | the score, under the type's name (`fallback` for unknown ones) |
| `has_answer_tag`    | there is an answer between tags                                |
| `format`            | there is, and a confidence as well where one is asked for      |
| `response_length`   | words of the whole reply                                       |
| `is_refusal`        | it declines to answer; in `versatile` forecasts only           |
| `exact_match`       | the answer is the truth, apart from case                       |
| `direction_correct` | of a forecast: it has the sign of the truth                    |
| `uncertainty`       | of the row, where it has one                                   |
| `confidence`        | where one was stated                                           |

RLCR (Damani et al., arXiv 2507.16806, equation 1): R = correct - (q - correct)^2 with the stated confidence q, whose
expected value is greatest for the q that is the probability of being right. Where no confidence can be read, the
square is 1, the worst: leaving it out never pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.types import Rewards, Task
from finqa_plugins.environments.forecast import strict_forecasts, versatile
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_replies import stated_answer, stated_confidence
from finqa_plugins.environments.forecast.forecast_rows import Row
from finqa_plugins.environments.forecast.sections import QUESTION_TYPES
from finqa_plugins.environments.forecast.weighting import uncertainty_weight
from finqa_plugins.environments.forecast.words import first_number, refuses, same_sign

OWN = "environment_"
"""Stands before the name of a part of ours that the configured reward has, too."""

_ROUNDING = 1e-9
_SCORES = {"strict": strict_forecasts.score, "versatile": versatile.score}


def judge(text: str, row: Row, task: Task, config: ForecastConfig, reward: Reward | None) -> Rewards:
    """The verdict on a whole reply. With a configured reward its total and parts count, and ours stand beside them.

    Under `uncertainty=reward` our own total is weighted; what a configured reward gives is left as it is, for it knows
    the uncertainty itself. Under `advantage` the weight goes beside either total.

    Raises:
        EnvironmentFault: The configured reward failed.
    """
    weight = uncertainty_weight(row.uncertainty, u0=config.u0, u_hi=config.u_hi, w_hi=config.w_hi)
    own = _verdict(text, row, config)
    if config.uncertainty == "reward":
        own = replace(own, total=own.total * weight)
    verdict = own if reward is None else _beside(reward.score(_request(text, row, task)), own)
    return replace(verdict, weight=weight) if config.uncertainty == "advantage" else verdict


def _verdict(text: str, row: Row, config: ForecastConfig) -> Rewards:
    said = text.replace(versatile.END, "") if config.profile == "versatile" else text
    stated = stated_answer(said, config.profile)
    answer = (said if config.profile == "versatile" else "") if stated is None else stated
    found, truths = _SCORES[config.profile], row.truths[:1] if config.profile == "versatile" else row.truths
    # a reply without a word states nothing, whatever a truth may look like
    score = max(found(answer, truth, row.question_type) for truth in truths) if answer.strip() else 0.0
    correct = score >= config.correct_at - _ROUNDING
    confidence = stated_confidence(text)
    formed = stated is not None and (confidence is not None or not config.asks_confidence)
    known = row.question_type if row.question_type in QUESTION_TYPES else "fallback"
    components = {
        "score": score,
        "correct": float(correct),
        known: score,
        "format": float(formed),
        "has_answer_tag": float(stated is not None),
        "response_length": float(len(text.split())),
        "is_refusal": float(_refuses(answer, row, config)),
        "exact_match": float(any(answer.strip().lower() == truth.lower() for truth in row.truths)),
    }
    if row.question_type == "pure_forecast":
        components["direction_correct"] = _direction(answer, row, config)
    if row.uncertainty is not None:
        components["uncertainty"] = row.uncertainty
    if confidence is not None:
        components["confidence"] = confidence
    total = score if config.reward == "score" else _rlcr(correct, confidence)
    return Rewards(total=total, components=components, explanation=_why(stated, confidence, components, config))


def _rlcr(correct: bool, confidence: float | None) -> float:
    return correct - (1.0 if confidence is None else (confidence - correct) ** 2)


def _refuses(answer: str, row: Row, config: ForecastConfig) -> bool:
    if config.profile == "versatile":
        return row.question_type == "pure_forecast" and versatile.refuses(answer)
    return refuses(answer)


def _direction(answer: str, row: Row, config: ForecastConfig) -> float:
    if config.profile == "versatile":
        value, wanted = versatile.number(answer), versatile.number(row.truths[0])
    else:
        value, wanted = strict_forecasts.only_number(answer), first_number(row.truths[0])
    if value is None or wanted is None or _refuses(answer, row, config):
        return 0.0
    return float(same_sign(value, wanted))


def _why(stated: str | None, confidence: float | None, parts: Mapping[str, float], config: ForecastConfig) -> str:
    reason = f"The answer scores {parts['score']:.2f}."
    if stated is None:
        reason = "There is not one answer between <answer> tags."
        if config.profile == "versatile":
            reason += f" The whole text scores {parts['score']:.2f}."
    elif parts["is_refusal"]:
        reason = "The answer is a refusal."
    if config.asks_confidence:
        reason += " No confidence from 0 to 1." if confidence is None else f" Confidence {confidence:.2f}."
    return reason


def _request(text: str, row: Row, task: Task) -> RewardRequest:
    extra = {**row.extra, "question_type": row.question_type, "question": row.question}
    extra.pop("uncertainty", None)
    if row.uncertainty is not None:  # verl's functions weigh wherever the key is there
        extra["uncertainty"] = row.uncertainty
    return RewardRequest(task=task, solution=text, truth=row.truths[0], data_source=row.data_source, extra_info=extra)


def _beside(given: Rewards, own: Rewards) -> Rewards:
    clashing = given.components.keys() - {"correct"}  # accuracy follows this part, so it stays ours
    parts = {f"{OWN}{name}" if name in clashing else name: value for name, value in own.components.items()}
    return replace(given, components={**given.components, **parts}, explanation=given.explanation or own.explanation)
