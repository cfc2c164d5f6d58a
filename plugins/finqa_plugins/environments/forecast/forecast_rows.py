"""One question with its truth, read from a row in the schema of verl's data sets, as the StockR1 experiments have it.

Columns: `data_source`, `prompt` (messages), `ability`, `reward_model` (`style`, `ground_truth`) and `extra_info`
(`index`, `split`, `question`, `answer`, `ticker`, `date`, `question_type`, `uncertainty`, ...). The nested ones may be
nested or texts of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finqa_cli.types import Message, Role
from finqa_plugins.environments.forecast.words import first_number

DATA_SOURCE = "financeqa/stock"
MAX_TEXT = 1_000_000
"""Characters of one field."""

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question.

    Attributes:
        id: Unique in its data.
        messages: How the row asks; the last one is the user's.
        question: Alone, without company, news and prices.
        truths: Accepted answers, at least one.
        question_type: One of the six types, or anything else for a question that is scored by its text.
        uncertainty: Of the row, 0 to 1; None when the row has none.
        ticker: May be empty.
        date: May be empty.
        data_source: The first argument of verl's reward functions.
        extra: The whole `extra_info`, for rewards.
    """

    id: str
    messages: tuple[Message, ...]
    question: str
    truths: tuple[str, ...]
    question_type: str
    uncertainty: float | None = None
    ticker: str = ""
    date: str = ""
    data_source: str = DATA_SOURCE
    extra: Mapping[str, Any] = field(default_factory=dict)


class InputError(Exception):
    """What is wrong with a row, a line or a file, in words that follow its place."""


class _FieldError(InputError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"field {name!r}: {reason}")


def read_row(value: object, *, name: str) -> Row:
    """A row of a file.

    Args:
        value: The row.
        name: Its id. `extra_info.index` is none: it begins anew in every file.

    Raises:
        InputError: A field is missing or malformed.
    """
    if not isinstance(value, Mapping):
        raise InputError("must be an object")
    extra = _object(value, "extra_info")
    messages = _messages(_nested(value, "prompt"))
    question = _text("extra_info.question", extra.get("question"), optional=True).strip()
    truths = _truths(_object(value, "reward_model").get("ground_truth"), extra.get("answer"))
    question_type = _text("extra_info.question_type", extra.get("question_type"), optional=True).strip().lower()
    if question_type == "pure_forecast" and any(first_number(truth) is None for truth in truths):
        raise _FieldError("reward_model.ground_truth", "must hold a number, for it is a forecast")
    return Row(
        id=name,
        messages=messages,
        question=question or messages[-1].content,
        truths=truths,
        question_type=question_type,
        uncertainty=_uncertainty(extra.get("uncertainty")),
        ticker=_text("extra_info.ticker", extra.get("ticker"), optional=True).strip(),
        date=_text("extra_info.date", extra.get("date"), optional=True).strip(),
        data_source=_text("data_source", value.get("data_source"), optional=True) or DATA_SOURCE,
        extra=extra,
    )


def as_record(row: Row, *, split: str, index: int) -> dict[str, Any]:
    """The row in the schema that `read_row` reads."""
    return {
        "data_source": row.data_source,
        "prompt": [{"role": message.role, "content": message.content} for message in row.messages],
        "ability": "finance",
        "reward_model": {"style": "rule", "ground_truth": row.truths[0]},
        "extra_info": {
            **row.extra,
            "split": split,
            "index": index,
            "question": row.question,
            "answer": row.truths[0],
            "ticker": row.ticker,
            "date": row.date,
            "question_type": row.question_type,
            "uncertainty": row.uncertainty,
        },
    }


def _messages(value: object) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message(role="user", content=_text("prompt", value)),)
    if not isinstance(value, list) or not value:
        raise _FieldError("prompt", "must be a text or a list of messages")
    messages = []
    for item in value:
        role = _ROLES.get(str(item.get("role"))) if isinstance(item, Mapping) else None
        if role is None:
            raise _FieldError("prompt", "every message must be an object with role system or user, and content")
        messages.append(Message(role=role, content=_text("prompt.content", item.get("content"))))
    if messages[-1].role != "user":
        raise _FieldError("prompt", "the last message must be the user's")
    return tuple(messages)


def _truths(value: object, answer: object) -> tuple[str, ...]:
    """`ground_truth` as a text, a number, `{"target": ...}` or `{"answer": ...}`; else `extra_info.answer`."""
    value = _from_json(value)
    if isinstance(value, Mapping):
        value = value.get("target") if value.get("target") is not None else value.get("answer")
    value = answer if value is None else value
    found = value if isinstance(value, list) else [value]
    texts = tuple(_truth(item) for item in found)
    if not texts:
        raise _FieldError("reward_model.ground_truth", "is an empty list")
    return texts


def _truth(value: object) -> str:
    name = "reward_model.ground_truth"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise _FieldError(name, "must be finite")
        return repr(value)
    text = _text(name, value).strip()
    if not text:
        raise _FieldError(name, "must not be empty")
    return text


def _uncertainty(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # anything may be there
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _FieldError("extra_info.uncertainty", "must be a number")
    return min(1.0, max(0.0, number))


def _object(row: Mapping[Any, Any], name: str) -> Mapping[str, Any]:
    value = _nested(row, name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _FieldError(name, "must be an object, or a text of one in JSON")
    return {str(key): item for key, item in value.items()}


def _nested(row: Mapping[Any, Any], name: str) -> object:
    return _from_json(row.get(name))


def _from_json(value: object) -> object:
    """What a text of a JSON list or object says; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _text(name: str, value: object, *, optional: bool = False) -> str:
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        raise _FieldError(name, "must be a text" if value is not None else "is missing")
    if len(value) > MAX_TEXT:
        raise _FieldError(name, f"holds {len(value)} characters, at most {MAX_TEXT} are taken")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise _FieldError(name, "is not valid Unicode: it holds half of a surrogate pair")
    return value
