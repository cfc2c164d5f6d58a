"""Rewrites answers in JSON, or in the form that Python prints, as the text that they decide on.

The decision of an object is the value of its one answer key, or, without one, of its only other key. Describing keys
(unit, explanation, year) are allowed beside it. Objects with years or names as keys, rows and records become `key:
value` pairs. Everything else, such as two answer keys, a repeated key or a draft beside the answer, is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from finqa_cli.grading.strict_2.labels import measures_named
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.refused_words import undecided
from finqa_cli.grading.strict_2.transcript import submits

_ANSWERS = word_set(
    "answer final_answer finalanswer final result final_result value response output prediction solution"
)
_UNIT_KEYS = frozenset(("unit", "units", "scale", "currency"))
_THINKING = word_set(
    "reasoning thought thoughts thinking steps working workings calculation calculations formula analysis question "
    "program sql query tool scratchpad code derivation"
)
"""Keys of the reasoning before the answer, which may consider alternatives."""
_DESCRIBING = _THINKING | word_set(
    "explanation rationale reason justification basis evidence notes note comment comments remark source sources "
    "reference references citation citations page metric name label year fiscal_year period company ticker confidence "
    "type format id table column row description decimals status context currency_code rounding"
)
_COMPETING = re.compile(
    r"answer|result|final|solution|alt|neg|inver|recip|check|plan|also|else|cancel|invert|other|second|first|third|draft|wrong|prev|old|new|"
    r"candidate|guess|debug|maybe"
    r"|option|choice|estimat|range|min|max|low|high|upper|true|false|correct|actual|verdict|score|reward|grade|possib"
    r"|backup|fallback|revis|restat|adjust|expect|truth|gold|not|hidden|value|either|instead"
)
"""Pattern of keys that may contain another answer, in addition to the answer key."""
_UNSURE = frozenset(("low", "very low", "none", "medium", "unsure", "uncertain"))
_CALLS = word_set("arguments args parameters params input data function action_input tool_input")
"""Keys under which a tool call or a reply has its one object."""
_KEYS_OF_ROWS = word_set("year fiscal_year period fy date name label segment key category company item")
_NEUTRAL = frozenset(("", "ratio", "decimal", "number", "none", "fraction", "count", "units", "unitless", "float"))
_PYTHON_WORDS = {"(": "[", ")": "]", "None": "null", "True": "true", "False": "false"}
_PYTHON = re.compile(
    r"(?P<string>'[^'\"\\\n]*'|\"[^\"\\\n]*\")|(?P<key>[0-9]{1,9})\s{0,4}:|(?P<word>[()]|\bNone\b|\bTrue\b|\bFalse\b)"
)
_TUPLE = re.compile(r",(?:[ \n]|\))")
_END_COMMA = re.compile(r",\s{0,8}(\]|\})")
_TRUNCATED = re.compile(r"\A\{\s{0,8}['\"][a-zA-Z_]{1,20}['\"]\s{0,8}:")
_YEAR = re.compile(r"(?:fy|fiscal year|year)?[ _]?(?:19|20)[0-9]{2}", re.IGNORECASE)
_MOST = 100
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer in JSON that does not have exactly one decision."""

    why: str


class _RefusedError(ValueError):
    pass


def read(text: str) -> str | Refused | None:
    """Returns the decision of a text that is JSON or a Python literal, or why it is refused; None if it is neither."""
    text = text.strip()
    if not text.startswith(("{", "[", "(")) and not (text.startswith('"') and text.endswith('"') and len(text) > 2):
        return None
    try:
        value = _load(text)
    except _RefusedError as error:
        return Refused(str(error))
    except (ValueError, RecursionError):
        return None
    if text.startswith("(") and not _TUPLE.search(text):
        return None  # `(5)` and `(1,100)` are no tuples
    try:
        return _decision(value)
    except _RefusedError as error:
        return Refused(str(error))


def _load(text: str) -> Any:
    """Returns the value of JSON, also if its end was cut off, or of a Python literal; a tuple of one is a list.

    Raises:
        ValueError: The text is neither.
    """
    ends = ("", "}", '"}') if _TRUNCATED.match(text) else ("",)
    for candidate in (*(text + end for end in ends), _as_json(text)):
        try:
            return json.loads(
                candidate,
                parse_float=_written,
                parse_int=_written,
                parse_constant=_no_number,
                object_pairs_hook=_unique,
            )
        except json.JSONDecodeError:
            continue
    raise ValueError


def _as_json(text: str) -> str:
    """Returns a Python literal as JSON: quotes, tuples, None, True, False, numeric keys, commas before an end."""
    return _END_COMMA.sub(r"\1", _PYTHON.sub(_token_as_json, text))


def _token_as_json(token: re.Match[str]) -> str:
    if token["string"]:
        return json.dumps(token["string"][1:-1])
    if token["key"]:
        return f'"{token["key"]}":'
    return _PYTHON_WORDS[token["word"]]


class _Number(str):
    """A number as it was written in JSON."""


def _written(text: str) -> _Number:
    return _Number(text)


def _no_number(text: str) -> NoReturn:
    raise _RefusedError(f"{text} is no number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise _RefusedError("A key is given twice.")
    return dict(pairs)


def _decision(value: Any) -> str:
    if isinstance(value, dict):
        return _of_object(value)
    if isinstance(value, list):
        return _of_list(value, 0)
    return _scalar(value)


def _of_object(value: dict[Any, Any], depth: int = 0) -> str:
    if depth > _DEEPEST:
        raise _RefusedError("The JSON is too deep.")
    if not all(isinstance(key, str | int) and not isinstance(key, bool) for key in value):
        raise _RefusedError("A key is not a text.")
    named = {str(key).strip().lower().replace(" ", "_"): inner for key, inner in value.items()}
    if len(named) == 2 and (action := named.get("action", named.get("tool"))) and submits(action):
        (submitted,) = (inner for key, inner in named.items() if key not in ("action", "tool"))
        return _of_object(submitted, depth + 1) if isinstance(submitted, dict) else _scalar(submitted)
    answers = [key for key in named if key in _ANSWERS]
    beside = [key for key in named if key not in _ANSWERS | _UNIT_KEYS | _DESCRIBING]
    if not answers and not beside and len(named) == 1:
        beside = list(named)  # `{"year": 2021}`
    called = [named[key] for key in ("name", "tool", "action") if key in named]
    if any(not submits(name) for name in called) and not _CALLS.isdisjoint(named):
        raise _RefusedError("The JSON calls a tool that submits no answer.")
    if not answers and len(beside) == 1 and beside[0] in _CALLS and (arguments := _arguments(named[beside[0]])):
        return _of_object(arguments, depth + 1)
    unit = " ".join(str(named[key]) for key in named if key in _UNIT_KEYS and str(named[key]).lower() not in _NEUTRAL)
    answer = named[answers[0]] if answers else None
    competes = answers and any(_competes(key, named[key], answer) for key in beside)
    if len(answers) > 1 or not (answers or beside) or competes:
        raise _RefusedError("The JSON does not contain exactly one answer.")
    _refuse_doubts(named)
    if answers:
        inner = named[answers[0]]
        text = _decision(inner) if isinstance(inner, dict | list) else _scalar(inner)
        return f"{text} {unit}".strip()
    if len(beside) == 1 and not _YEAR.fullmatch(beside[0]):
        inner = named[beside[0]]
        if isinstance(inner, dict | list):
            raise _RefusedError("The JSON contains no plain answer.")
        year = next((f" {named[key]}" for key in _YEAR_KEYS if _YEAR.fullmatch(str(named.get(key, "")))), "")
        return f"{beside[0].replace('_', ' ')}{year}: {_scalar(inner)} {unit}".strip()
    return _pairs([(key.replace("_", " "), named[key]) for key in beside], unit)


def _arguments(value: Any) -> dict[Any, Any]:
    """Returns the arguments of a call, which some servers write as JSON in a text; {} if the value has none.

    Raises:
        _RefusedError: The JSON repeats a key, or contains NaN or an infinity.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = _load(value)
        except (ValueError, RecursionError) as error:
            if isinstance(error, _RefusedError):
                raise
            return {}
    return value if isinstance(value, dict) else {}


def _competes(key: str, value: Any, answer: Any) -> bool:
    """Returns whether a key beside an answer may contain another answer; a plain value under another name does not.

    Such a name describes an input, as `total_debt` does. `ratio`, `debt_to_equity` and `b` do not.
    """
    if _COMPETING.search(key) or _YEAR.fullmatch(key) or len(key) < _SHORTEST_NAME:
        return True
    words = key.split("_")
    names_result = measures_named(words) - {"total", "average"} or not _RATIO_WORDS.isdisjoint(words)
    if names_result and isinstance(value, str) and _digits(answer) not in ("", _digits(value)):
        return True
    if isinstance(value, dict):
        return any(
            _COMPETING.search(str(inner).lower()) or isinstance(one, dict | list) for inner, one in value.items()
        )
    is_plain = isinstance(value, list) and not any(isinstance(one, dict | list) for one in value)
    return isinstance(value, list) and not (is_plain and _INPUTS.search(key))


_INPUTS = re.compile(r"input|operand|component|data|used|from|source|step|table|row|part|number")


def _digits(value: Any) -> str:
    """Returns the digits of a number without zeros around them: the same for 0.052 and 5.2%."""
    return "".join(one for one in str(value) if one.isdigit()).strip("0")


_SHORTEST_NAME = 3
_RATIO_WORDS = frozenset(("to", "over", "per"))


def _refuse_doubts(named: dict[str, Any]) -> None:
    """Raises for an object whose remarks contradict its answer.

    Raises:
        _RefusedError: A remark hedges, a value is false, the status is a failure, or the confidence is low.
    """
    if any(value is False for key, value in named.items() if key not in _ANSWERS):
        raise _RefusedError("A statement in addition to the answer is false.")
    if any(_FAILED.search(f"{key} {value}".lower()) for key, value in named.items() if key in ("status", "error")):
        raise _RefusedError("The answer is marked as failed.")
    confidence = str(named.get("confidence", named.get("certainty", "high"))).strip().lower()
    if confidence in _UNSURE or (_PROBABILITY.fullmatch(confidence) and float(confidence) < 0.5):
        raise _RefusedError("The answer is given with low confidence.")
    for key, value in named.items():
        if key not in _ANSWERS | _THINKING and isinstance(value, str) and undecided(value.lower()):
            raise _RefusedError("A remark in addition to the answer contradicts it.")


_FAILED = re.compile(r"error (?!none)|reject|fail|unsure|draft|pending|invalid|unverified|incomplete")
_PROBABILITY = re.compile(r"[01](?:\.[0-9]{1,6})?")
_YEAR_KEYS = ("year", "fiscal_year", "period")


def _of_list(values: list[Any], depth: int) -> str:
    if not values or len(values) > _MOST or depth > _DEEPEST:
        raise _RefusedError("The list is empty, or too long.")
    if len(values) == 1 and isinstance(values[0], dict) and (len(values[0]) == 1 or _is_call(values[0])):
        return _of_object(values[0], depth + 1)  # what a query returns, `[{"change": -77}]`, or one call
    if all(isinstance(one, dict) for one in values):
        return _pairs([_record(one) for one in values], "")
    if len(values) == 1 and isinstance(values[0], list):
        return _of_list(values[0], depth + 1)
    if all(isinstance(one, list) for one in values):
        if all(len(one) == 1 for one in values):
            return "; ".join(_scalar(one[0]) for one in values)
        if not all(len(one) == 2 for one in values):
            raise _RefusedError("The rows are not pairs.")
        return _pairs([(_scalar(one[0]), one[1]) for one in values], "")
    return "; ".join(_scalar(one) for one in values)


def _is_call(value: dict[Any, Any]) -> bool:
    """Returns whether an object is a call of a tool that submits an answer: name, arguments and an id."""
    return value.keys() <= _KEYS_OF_CALLS and submits(value.get("name"))


_KEYS_OF_CALLS = frozenset(("name", "arguments", "parameters", "id", "type"))


def _record(row: dict[Any, Any]) -> tuple[str, Any]:
    keys = [key for key in row if str(key).lower() in _KEYS_OF_ROWS]
    values = [key for key in row if key not in keys]
    if len(keys) != 1 or len(values) != 1:
        raise _RefusedError("A record is not a year or name with its value.")
    return _scalar(row[keys[0]]), row[values[0]]


def _pairs(pairs: list[tuple[str, Any]], unit: str) -> str:
    return "; ".join(f"{key}: {_scalar(value)} {unit}".strip() for key, value in pairs)


def _scalar(value: Any) -> str:
    """Returns a number or text as written; true and false become words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and abs(value) < 10**30:
        return repr(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise _RefusedError("A value is missing, or is neither a number nor a text.")
