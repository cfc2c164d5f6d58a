"""Answers of a policy in JSON, `{"answer": number | string, "program": ..., "reasoning": string}`, and test cases.

Source: the output schema of the RL-LLM FinQA pipeline. Only `answer` is required, and no other keys are allowed.
`program` is a text in FinQA's language, or an array of `{"operation", "arguments", "result"}`, one per step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

FIELDS = ("answer", "program", "reasoning")

_FENCE = "```"
_END_OF_THOUGHT = "</think>"
_STEP_FIELDS = frozenset({"operation", "arguments", "result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A built-in test of a reward: an answer, and the reward that it must get.

    Attributes:
        name: What is tested.
        expected: Part of the reward, or `total` -> value. Other parts may have any value.
        solution: Answer of the policy.
        truth: The right answer.
        program: The gold program, as in `RewardRequest`.
        table: The table, as in `RewardRequest`.
        question: The question as the policy read it.
    """

    name: str
    expected: Mapping[str, float]
    solution: str
    truth: str
    program: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    question: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The parts of an answer.

    Attributes:
        answer: The answer as written; a number is finite. None only with an error.
        program: An array in FinQA's flat form, `subtract(5829, 5735), divide(#0, 5735)`, a text as the policy wrote it;
            not checked. Empty if there is none.
        reasoning: Empty if there is none.
        error: Why the text is not an answer in this form; empty if it is one.
    """

    answer: str | int | float | None = None
    program: str = ""
    reasoning: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the text has the form."""
        return not self.error

    @property
    def answer_text(self) -> str:
        """The answer as text, without JSON; empty with an error."""
        return "" if self.answer is None else str(self.answer)


def parse_reply(text: str) -> Reply:
    """Reads a bare JSON object, or the last fenced block (```json or ```), which prose may surround.

    Text before the last `</think>` is ignored. These are errors, with the reason in `Reply.error`: a repeated key (it
    could contain two answers), a key outside the schema, NaN, infinities, and numbers too large for a double. Never
    raises; takes time linear in the text.
    """
    try:
        return _reply(parse_object(text))
    except MalformedReplyError as problem:
        return Reply(error=str(problem))


class MalformedReplyError(ValueError):
    """A text is not an answer in the required form; the message states why."""


def parse_object(text: str) -> dict[str, Any]:
    """Reads the JSON object of a reply, as `parse_reply` does, with any keys.

    Raises:
        MalformedReplyError: There is no JSON object, or it has one of the errors that `parse_reply` lists.
    """
    return _load(_object_text(text))


def _object_text(text: str) -> str:
    said = text.rpartition(_END_OF_THOUGHT)[2].strip()
    if not said:
        raise MalformedReplyError("the reply is empty")
    parts = said.split(_FENCE)
    if len(parts) == 1 or (said.startswith("{") and said.endswith("}")):
        return said
    if len(parts) % 2 == 0:
        raise MalformedReplyError("the last fence is not closed")
    block = parts[-2]
    if block[:4].lower() == "json":
        block = block[4:]
    return block.strip()


def _load(text: str) -> dict[str, Any]:
    try:
        value = json.loads(
            text, parse_float=_finite, parse_int=_whole, parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        raise MalformedReplyError(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise MalformedReplyError("not JSON that can be read: too deeply nested") from error
    if not isinstance(value, dict):
        raise MalformedReplyError(f"the JSON is {_kind(value)}, not an object")
    return value


def _reply(value: dict[str, Any]) -> Reply:
    unknown = [key for key in value if key not in FIELDS]
    if unknown:
        raise MalformedReplyError(f"unknown key {unknown[0][:40]!r}; the keys are {', '.join(FIELDS)}")
    if "answer" not in value:
        raise MalformedReplyError("the key 'answer' is missing")
    answer = value["answer"]
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise MalformedReplyError(f"'answer' is {_kind(answer)}, not a number or a text")
    reasoning = value.get("reasoning", "")
    if not isinstance(reasoning, str):
        raise MalformedReplyError(f"'reasoning' is {_kind(reasoning)}, not a text")
    return Reply(
        answer=_text(answer.strip(), "answer") if isinstance(answer, str) else answer,
        program=_program(value.get("program", "")),
        reasoning=_text(reasoning.strip(), "reasoning"),
    )


def _program(value: Any) -> str:
    if isinstance(value, str):
        return _text(value.strip(), "program")
    if not isinstance(value, list):
        raise MalformedReplyError(f"'program' is {_kind(value)}, not a text or an array of steps")
    return ", ".join(_step(number, step) for number, step in enumerate(value))


def _step(number: int, step: Any) -> str:
    where = f"step {number} of 'program'"
    if not isinstance(step, dict):
        raise MalformedReplyError(f"{where} is {_kind(step)}, not an object")
    if not step.keys() <= _STEP_FIELDS:
        raise MalformedReplyError(f"{where} has an unknown key {min(step.keys() - _STEP_FIELDS)[:40]!r}")
    operation, arguments = step.get("operation"), step.get("arguments")
    if not isinstance(operation, str) or not operation.strip():
        raise MalformedReplyError(f"{where} has no 'operation'")
    if not isinstance(arguments, list) or not 1 <= len(arguments) <= 2:
        raise MalformedReplyError(f"{where} needs 'arguments', an array of one or two")
    if any(isinstance(one, bool) or not isinstance(one, (str, int, float)) for one in arguments):
        raise MalformedReplyError(f"{where} has an argument that is neither a number nor a text")
    written = [str(one).strip() for one in arguments]
    if len(written) == 1:
        written.append("none")  # table operations take one row name; the flat form always has two arguments
    return _text(f"{operation.strip()}({', '.join(written)})", "program")


def _text(text: str, field: str) -> str:
    """Returns the text; raises for a lone surrogate, which cannot be encoded in a file."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedReplyError(f"{field!r} is not valid Unicode") from error
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedReplyError(f"the key {key[:40]!r} stands twice in one object")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise MalformedReplyError("a number is too large for a double")
    return number


def _whole(text: str) -> int:
    _finite(text)  # also ensures that the text is not longer than int() accepts
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise MalformedReplyError(f"{text} is not JSON")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
