"""Questions with their truths, read from rows in the schema of verl's data sets, as the StockR1 experiments have it.

Columns: `data_source`, `prompt` (messages), `ability`, `reward_model` (`style`, `ground_truth`) and `extra_info`
(`index`, `split`, `question`, `answer`, `ticker`, `date`, `question_type`, `uncertainty`, ...). Nested columns may be
objects or JSON texts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo, Message, Role
from finqa_cli.types.splits import split_of_name
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowFields,
    RowReader,
    TaskData,
    checked_text,
    divide_by_cluster,
    files_by_split,
)
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.strict_forecasts import first_number

MAX_BYTES = 2**31
_ENDINGS = (".parquet", ".jsonl")
_REMEDY = "--data with a .parquet or .jsonl file in verl's schema, or a folder with a train and a test file"

DATA_SOURCE = "financeqa/stock"
MAX_TEXT = 1_000_000
"""Longest field in characters."""

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """One question.

    Attributes:
        id: Unique in its data.
        messages: Messages of the prompt; the last one is the user's.
        question: The question without company, news and prices.
        truths: Accepted answers, at least one.
        question_type: One of the six types; any other question is scored by its text.
        uncertainty: Uncertainty of the row, 0 to 1; None if the row has none.
        ticker: May be empty.
        date: May be empty.
        data_source: Name of the source, the first argument of verl's reward functions.
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


def read_row(value: object, *, name: str) -> ForecastRow:
    """Read a row of a file.

    Args:
        value: The row.
        name: Id of the row; `extra_info.index` is not unique, because it restarts in every file.

    Raises:
        RowError: A field is missing or malformed.
    """
    if not isinstance(value, Mapping):
        raise RowError("must be an object")
    extra = _object(value, "extra_info")
    fields = RowFields({**value, "extra_info": extra}, MAX_TEXT)
    messages = _messages(_from_json(value.get("prompt")))
    truths = _truths(_object(value, "reward_model").get("ground_truth"), extra.get("answer"))
    question_type = fields.text("extra_info.question_type", optional=True).lower()
    if question_type == "pure_forecast" and any(first_number(truth) is None for truth in truths):
        raise FieldError("reward_model.ground_truth", "must contain a number, because it is a forecast")
    return ForecastRow(
        id=name,
        messages=messages,
        question=fields.text("extra_info.question", optional=True) or messages[-1].content,
        truths=truths,
        question_type=question_type,
        uncertainty=_uncertainty(extra.get("uncertainty")),
        ticker=fields.text("extra_info.ticker", optional=True),
        date=fields.text("extra_info.date", optional=True),
        data_source=fields.text("data_source", optional=True) or DATA_SOURCE,
        extra=extra,
    )


def as_record(row: ForecastRow, *, split: str, index: int) -> dict[str, Any]:
    """Return the row in the schema that `read_row` reads."""
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
        raise FieldError("prompt", "must be a text or a list of messages")
    messages = []
    for item in value:
        role = _ROLES.get(str(item.get("role"))) if isinstance(item, Mapping) else None
        if role is None:
            raise FieldError("prompt", "every message must be an object with role system or user, and content")
        messages.append(Message(role=role, content=_text("prompt.content", item.get("content"))))
    if messages[-1].role != "user":
        raise FieldError("prompt", "the last message must be the user's")
    return tuple(messages)


def _truths(value: object, answer: object) -> tuple[str, ...]:
    """The accepted answers: of `ground_truth` (a value, a list, {"target": ...} or {"answer": ...}), else `answer`."""
    value = _from_json(value)
    if isinstance(value, Mapping):
        value = value.get("target") if value.get("target") is not None else value.get("answer")
    value = answer if value is None else value
    found = value if isinstance(value, list) else [value]
    texts = tuple(_truth(item) for item in found)
    if not texts:
        raise FieldError("reward_model.ground_truth", "is an empty list")
    return texts


def _truth(value: object) -> str:
    name = "reward_model.ground_truth"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise FieldError(name, "must be finite")
        return repr(value)
    text = _text(name, value).strip()
    if not text:
        raise FieldError(name, "must not be empty")
    return text


def _uncertainty(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # anything may be there
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise FieldError("extra_info.uncertainty", "must be a number")
    return min(1.0, max(0.0, number))


def _object(row: Mapping[Any, Any], name: str) -> Mapping[str, Any]:
    value = _from_json(row.get(name))
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FieldError(name, "must be an object, or a text of one in JSON")
    return {str(key): item for key, item in value.items()}


def _from_json(value: object) -> object:
    """Parse a text of a JSON list or object; return anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def _text(name: str, value: object) -> str:
    if value is None:
        raise FieldError(name, "is missing")
    return checked_text(name, value, MAX_TEXT)


def cluster_of(row: ForecastRow, config: ForecastConfig) -> str:
    """Return the cluster of a row: its ticker or its date, as configured; if missing the other one, else its id."""
    first, second = (row.ticker, row.date) if config.cluster == "ticker" else (row.date, row.ticker)
    return first or second or row.id


def divide(
    rows: Sequence[ForecastRow], shares: Mapping[str, float], config: ForecastConfig
) -> dict[str, tuple[ForecastRow, ...]]:
    """Divide rows by cluster; see `divide_by_cluster`."""
    return divide_by_cluster(rows, lambda row: cluster_of(row, config), shares, f"forecast:{config.seed}")


def load(path: Path, config: ForecastConfig) -> TaskData[ForecastRow]:
    """Read the rows at a path.

    A folder contains one file for each split (train..., dev or val..., test...). A single file called test is `test`,
    one called dev or val is `dev`; any other is training data. If there is training data but no dev or test
    file, the share `holdout` of its clusters becomes `dev`.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
        MissingDependencyError: A Parquet file needs pyarrow, which is not installed.
    """
    if config.match and not path.is_dir():
        raise DataError(f"Option match={config.match} needs a folder, but {path} is not a folder.", remedy=_REMEDY)
    choose = "--set environment.options.match=TEXT selects files with the text in their names"
    every = "--set environment.options.match=, which takes all files" if config.match else _REMEDY
    files = (
        files_by_split(path, _ENDINGS, match=config.match, remedy=every, choose=choose)
        if path.is_dir()
        else {split_of_name(path) or "train": path}
    )
    reader = RowReader(
        lambda value, name: read_row(value, name=name),
        max_bytes=MAX_BYTES,
        remedy=_REMEDY,
        endings=_ENDINGS,
        skip_bad=config.skip_bad,
    )
    rows, lines = {}, ""
    for split, file in files.items():
        found, digest = reader.read(file)
        rows[split] = tuple(row for row in found if not config.types or row.question_type in config.types)
        lines += f"{digest}  {split}\n"
    reader.finish(any_row=any(rows.values()))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    info = DataInfo(
        name=path.resolve().name, digest=f"sha256:{digest}", evaluation_only="train" not in rows and "test" in rows
    )
    if "train" in rows and rows.keys() & {"dev", "test"} == set():
        return TaskData(info=info, rows=divide(rows["train"], {"dev": config.holdout}, config))
    return TaskData(info=info, rows={split: part for split, part in rows.items() if part})
