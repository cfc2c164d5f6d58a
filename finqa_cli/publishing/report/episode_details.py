"""The data of the page of one attempt: messages, turns with calls, result tables and tokens. Reads no files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from finqa_cli.grading.items import read_numbers

_LONGEST_TEXT = 200_000
"""Most characters of one text in a report; a longer text is truncated, and the page says so."""

_MOST_ROWS = 500
_MOST_COLUMNS = 60


def episode_detail(record: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """Returns what the page of an attempt shows in addition to its row; token ids and log-probabilities are left out.

    Args:
        record: Its line in trajectories.jsonl.
        answer: The answer of the attempt.

    Raises:
        KeyError, TypeError, AttributeError: The mapping is not a record of an attempt.
    """
    truth, values = str(record.get("truth", "")), record.get("values", {})  # absent if the right answer is not known
    return {
        "seed": str(record["seed"]),  # it may be above 2^53, where JavaScript rounds
        "error": record["error"],
        "components": dict(record["components"]),
        "truth": truth,
        "numbers": values.get("answer") or read_numbers(answer),
        "truth_numbers": values.get("truth", ""),
        "metadata": _plain(record.get("metadata") or {}),
        "messages": [_message(message) for message in record["messages"]],
        "tools": [
            {"name": tool["function"]["name"], "description": tool["function"].get("description", "")}
            for tool in record["tools"]
        ],
        "turns": [_turn(turn) for turn in record["turns"]],
    }


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
    """Returns a tool's reply as a table if it is a JSON list of flat objects of the same kind.

    Cells are texts exactly as they were written, so that no digit of a number is lost; null becomes None. Columns
    have the order of the reply.

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
    """Returns metadata in which values that JSON cannot represent are text."""
    return json.loads(json.dumps(value, default=str))
