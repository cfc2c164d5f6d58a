"""The verdict on a reply, and the weight of a row by its uncertainty.

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
expected value is largest if q is the probability of being right. If no confidence can be read, the square counts as 1,
the worst value, so that leaving the confidence out is never better.

The weight of a row follows from its uncertainty. The published training multiplies the reward: r' = w(u) r. The
uncertainty u belongs to the row, so w is the same for all attempts of a group, and GRPO's standardised advantage is
that of the unweighted rewards, (w r - mean(w r)) / std(w r) = (r - mean(r)) / std(r). So, apart from the 1e-8 that is
added to the deviation, the weighting changes only the logged reward. Without the division (Dr. GRPO, RLOO) it scales
the advantages of the group by w, as a factor on the advantage itself does with every method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.types import Rewards, Task
from finqa_plugins.environments.forecast import strict_forecasts, versatile
from finqa_plugins.environments.forecast.config import ForecastConfig, Profile
from finqa_plugins.environments.forecast.forecast_prompt import QUESTION_TYPES
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow
from finqa_plugins.environments.forecast.strict_forecasts import first_number, refuses, same_sign

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20}")
_SMALL = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ROUNDING = 1e-9
_SCORES = {"strict": strict_forecasts.score, "versatile": versatile.score}


def judge(text: str, row: ForecastRow, task: Task, config: ForecastConfig, reward: Reward | None) -> Rewards:
    """Judge a whole reply. A configured reward gives total and parts; the environment's own parts are kept beside them.

    With `uncertainty=reward` the environment's own total is multiplied by the weight. A configured reward is not
    changed, because it gets the uncertainty itself. With `advantage` the weight is returned beside either total.

    Raises:
        EnvironmentFault: The configured reward failed.
    """
    weight = uncertainty_weight(row.uncertainty, u0=config.u0, u_hi=config.u_hi, w_hi=config.w_hi)
    own = _verdict(text, row, config)
    if config.uncertainty == "reward":
        own = replace(own, total=own.total * weight)
    verdict = own if reward is None else reward.score_beside(_request(text, row, task), own)
    return replace(verdict, weight=weight) if config.uncertainty == "advantage" else verdict


def _verdict(text: str, row: ForecastRow, config: ForecastConfig) -> Rewards:
    said = text.replace(versatile.END, "") if config.profile == "versatile" else text
    stated = stated_answer(said, config.profile)
    answer = (said if config.profile == "versatile" else "") if stated is None else stated
    found, truths = _SCORES[config.profile], row.truths[:1] if config.profile == "versatile" else row.truths
    # an empty answer scores 0 for any truth
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


def _refuses(answer: str, row: ForecastRow, config: ForecastConfig) -> bool:
    if config.profile == "versatile":
        return row.question_type == "pure_forecast" and versatile.refuses(answer)
    return refuses(answer)


def _direction(answer: str, row: ForecastRow, config: ForecastConfig) -> float:
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


def _request(text: str, row: ForecastRow, task: Task) -> RewardRequest:
    extra = {**row.extra, "question_type": row.question_type, "question": row.question}
    extra.pop("uncertainty", None)
    if row.uncertainty is not None:  # verl's functions apply a weight if the key exists
        extra["uncertainty"] = row.uncertainty
    return RewardRequest(task=task, solution=text, truth=row.truths[0], data_source=row.data_source, extra_info=extra)


def uncertainty_weight(uncertainty: float | None, *, u0: float, u_hi: float, w_hi: float) -> float:
    """Return w(u) = 1 up to u0, else w_hi ** ((u - u0) / (u_hi - u0)), with u clipped to [0, 1]; 1 for an unknown u.

    Source: the reward function `reward_uncertain_versatile` of the published StockR1 experiments, where u0 = 0.3,
    u_hi = 0.5 and w_hi = 0.5: the weight halves with every 0.2 of uncertainty above 0.3.

    Args:
        uncertainty: Uncertainty of the row, not of the policy.
        u0: Uncertainty up to which nothing is weighted down.
        u_hi: Uncertainty above u0 at which the weight is w_hi.
        w_hi: Weight at u_hi, above 0.
    """
    if uncertainty is None:
        return 1.0
    clipped = min(1.0, max(0.0, uncertainty))
    return 1.0 if clipped <= u0 else math.exp(math.log(w_hi) * (clipped - u0) / (u_hi - u0))


def stated_answer(text: str, profile: Profile) -> str | None:
    """Return the text between the answer tags; None if there is none, in `strict` also if there are several.

    `versatile` uses the last of several answers, and only tags in lower case. `strict` needs exactly one answer, after
    any reasoning that ends with `</think>`.
    """
    if profile == "versatile":
        found = _between(text, text, "answer")
        return found[-1].strip() if found else None
    return _only(text, "answer")


def stated_confidence(text: str) -> float | None:
    """Return the confidence in [0, 1], given as number or percentage in one pair of tags; None if there is none."""
    stated = _only(text, "confidence")
    if stated is None:
        return None
    percent = stated.endswith("%")
    number = stated.removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        return None
    value = float(number) / (100 if percent else 1)
    return value if math.isfinite(value) and value <= 1 else None


def _only(text: str, name: str) -> str | None:
    """Return the text in the only pair of tags of this name; None if there are none or several, or it is empty."""
    spoken = text.rpartition("</think>")[2].lower()
    found = _tagged(text.rpartition("</think>")[2], name)
    if len(found) != 1 or spoken.count(f"<{name}>") != 1 or spoken.count(f"</{name}>") != 1:
        return None
    return found[0].strip() or None


def _tagged(text: str, name: str) -> list[str]:
    """Return the texts between tags of a name in any case."""
    return _between(text, _lower(text), name)


def _between(text: str, searched: str, name: str) -> list[str]:
    """Return the parts of `text` whose positions are between tags in `searched`. Takes linear time for any text."""
    opening, closing = f"<{name}>", f"</{name}>"
    found = []
    place = searched.find(opening)
    while place >= 0:
        start = place + len(opening)
        end = searched.find(closing, start)
        if end < 0:
            break
        found.append(text[start:end])
        place = searched.find(opening, end)
    return found


def _lower(text: str) -> str:
    """Return the text with ASCII letters in lower case, so that positions stay the same."""
    return text.translate(_SMALL)
