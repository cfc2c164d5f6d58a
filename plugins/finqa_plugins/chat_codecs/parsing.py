"""Finds the tool call in what a model wrote. Pure text; every input gives a turn."""

from __future__ import annotations

import json
import re
from typing import Any

from finqa_cli.types import AssistantTurn, ToolCall

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
THINK_CLOSE = "</think>"
EXAMPLE = f'{CALL_OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CALL_CLOSE}'


class _CallError(Exception):
    """What is wrong with a call, in words for the model."""


def parse_turn(text: str) -> AssistantTurn:
    """Parses an assistant turn; `text` is free of stop tokens.

    Exactly one call a turn is accepted, because an episode answers one call at a time: playing only the first of
    several would leave the model with calls whose replies never come. Calls inside a reasoning block do not count.
    """
    try:
        return AssistantTurn(text=text, tool_call=_load_call(_call_body(text)))
    except _CallError as error:
        return AssistantTurn(text=text, parse_error=str(error))


def render_call(call: ToolCall) -> str:
    """The call as Qwen's chat template writes it (without control-token care: see `shielding`)."""
    body = f'{{"name": "{call.name}", "arguments": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'
    return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"


def _call_body(text: str) -> str:
    spoken = text.rpartition(THINK_CLOSE)[2]
    opened = spoken.count(CALL_OPEN)
    if opened == 0:
        raise _CallError(f"No tool call found. Call one tool like this:\n{EXAMPLE}")
    if opened > 1:
        raise _CallError(f"{opened} tool calls found. Make exactly one tool call per turn.")
    body, closing, _ = spoken.partition(CALL_OPEN)[2].partition(CALL_CLOSE)
    if not closing:
        raise _CallError(f"The tool call is not closed: {CALL_CLOSE} is missing.")
    return body.strip()


def _load_call(body: str) -> ToolCall:
    if not body:
        raise _CallError(f"The tool call is empty. Write JSON inside it:\n{EXAMPLE}")
    payload = _load_json(body)
    if not isinstance(payload, dict):
        raise _CallError(f"The tool call must be a JSON object, got {_kind(payload)}.")
    if "name" not in payload:
        raise _CallError('The tool call has no "name".')
    name = payload["name"]
    if not isinstance(name, str) or not name:
        raise _CallError(f'"name" must be a tool\'s name, got {_kind(name)}.')
    if "arguments" not in payload:
        raise _CallError('The tool call has no "arguments" object.')
    arguments = payload["arguments"]
    if not isinstance(arguments, dict):
        raise _CallError(f'"arguments" must be a JSON object, got {_kind(arguments)}.')
    return ToolCall(name=name, arguments=arguments)


def _load_json(body: str) -> Any:
    try:
        payload = json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _CallError(f"The tool call is not valid JSON: {error.msg} at position {error.pos}.") from error
    except RecursionError as error:
        raise _CallError("The tool call is not valid JSON: nested too deeply.") from error
    except ValueError as error:  # Python refuses to convert integers of more than 4300 digits
        raise _CallError("The tool call is not valid JSON: a number in it is too long.") from error
    if re.search(r"\\u[dD][89a-fA-F]", body) and not _is_unicode(payload):
        raise _CallError("The tool call is not valid JSON: it has half of a surrogate pair (\\ud800 to \\udfff).")
    return payload


def _refuse_constant(name: str) -> None:
    raise _CallError(f"The tool call is not valid JSON: {name} is not a JSON number.")


def _is_unicode(payload: object) -> bool:
    try:
        json.dumps(payload, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "null")
