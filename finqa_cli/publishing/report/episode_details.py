"""The page of one attempt as data: messages, turns with calls, result tables and tokens. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from finqa_cli.grading.items import answer_items
from finqa_cli.grading.numbers import Number
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES

_LONGEST_TEXT = 200_000
"""Characters of one text in a report; a longer one is cut, and the page says so."""

_TRUTHS = frozenset({"truth", "gold", "gold_answer", "expected", "reference", "target", "answer"})
"""Names under which environments record what is right, in the metadata of an attempt."""

_LARGEST = 10**15
_MOST_ROWS = 500
_MOST_COLUMNS = 60


def episode_detail(record: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """Returns what the page of an attempt shows beside its row; token ids and log-probabilities are left out.

    Args:
        record: Its line in trajectories.jsonl.
        answer: What it answered.

    Raises:
        KeyError, TypeError, AttributeError: It is no record of an attempt.
    """
    metadata = _plain(record.get("metadata") or {})
    truths = {name: value for name, value in metadata.items() if name.lower() in _TRUTHS}
    truth = "; ".join(value if isinstance(value, str) else json.dumps(value) for value in truths.values())
    return {
        "seed": str(record["seed"]),  # above 2^53, where JavaScript rounds
        "error": record["error"],
        "components": dict(record["components"]),
        "truth": truth,
        "numbers": read_numbers(answer),
        "truth_numbers": read_numbers(truth),
        "metadata": {name: value for name, value in metadata.items() if name not in truths},
        "messages": [_message(message) for message in record["messages"]],
        "tools": [
            {"name": tool["function"]["name"], "description": tool["function"].get("description", "")}
            for tool in record["tools"]
        ],
        "turns": [_turn(turn) for turn in record["turns"]],
    }


def read_numbers(text: str) -> str:
    """Returns the numbers of an answer or truth with their keys and units applied: `12.5%` is `0.125`.

    This is the reading that the grading profiles have in common; a profile may read further forms.

    Returns:
        Empty where there is no number, or the values are ambiguous.
    """
    found = answer_items(text) if len(text) <= MAX_ANSWER_BYTES else ""
    if isinstance(found, str):
        return ""
    numbers = [(item.key, item.value) for item in found if isinstance(item.value, Number)]
    return ", ".join(f"{key}: {_decimal(value)}" if key else _decimal(value) for key, value in numbers)


def _decimal(number: Number) -> str:
    value = number.value
    if value.denominator == 1 and abs(value) < _LARGEST:
        return f"{value.numerator:,}"
    try:
        return f"{float(value):,.12g}"
    except OverflowError:
        return str(number.mantissa.numerator)[:20] + "…"


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    images = {"images": len(message["images"])} if message.get("images") else {}
    return {"role": message["role"], **_text(message["content"]), **images}


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    steps = [turn, *turn.get("further_steps", ())] if turn["tool_call"] is not None else []
    shown: dict[str, Any] = {
        **_text(turn["text"]),
        "words": turn.get("words", ""),
        "steps": [_step(step) for step in steps],
        "parse_error": turn["parse_error"],
        "stop": turn["stop"],
        "version": turn["policy_version"],
        "prompt_tokens": turn["prompt_tokens"],
        "completion_tokens": turn["completion_tokens"],
        "seconds": turn["seconds"],
    }
    if not steps and turn["observation"] is not None:
        shown["reply"] = _observation(turn["observation"])
    return shown


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    call, observation = step["tool_call"], step["observation"]
    reply = {} if observation is None else {"reply": _observation(observation)}
    arguments = [[str(name), _argument(value)] for name, value in call["arguments"].items()]
    return {"name": call["name"], "arguments": arguments, **reply}


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _observation(observation: Mapping[str, Any]) -> dict[str, Any]:
    found = result_table(observation["text"])
    return {
        **_text(observation["text"]),
        **({"table": found} if found else {}),
        **({"is_error": True} if observation["is_error"] else {}),
        **({"images": len(observation["images"])} if observation.get("images") else {}),
    }


def _text(text: str) -> dict[str, Any]:
    if len(text) <= _LONGEST_TEXT:
        return {"text": text}
    return {"text": text[:_LONGEST_TEXT], "cut": len(text) - _LONGEST_TEXT}


def result_table(text: str) -> dict[str, Any] | None:
    """Returns a tool's reply as a table, where it is one: a JSON list of flat objects of the same kind.

    Cells are texts exactly as they were written, so that no digit of a number is lost; null is None. Columns have
    the order of the reply.

    Returns:
        `columns`, `rows`, and `more` for the number of rows that are left out; None for anything else.
    """
    if not text.lstrip().startswith("[{") or len(text) > _LONGEST_TEXT:
        return None
    try:
        rows = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    columns = list(dict.fromkeys(chain.from_iterable(rows)))
    if not columns or len(columns) > _MOST_COLUMNS or any(isinstance(value, (dict, list)) for value in _cells(rows)):
        return None
    shown = [[_cell(row[name]) if name in row else "" for name in columns] for row in rows[:_MOST_ROWS]]
    return {"columns": columns, "rows": shown, **({"more": len(rows) - _MOST_ROWS} if len(rows) > _MOST_ROWS else {})}


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(row.values() for row in rows)


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _plain(value: Any) -> Any:
    """Returns metadata with what JSON has no word for as text."""
    return json.loads(json.dumps(value, default=str))
