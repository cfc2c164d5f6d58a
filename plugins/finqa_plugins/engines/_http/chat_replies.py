"""A server's reply as an assistant turn: text, reasoning, and calls in the encodings that servers use. Pure.

A call that a server has encoded in another way than its protocol says is read. It is not the model's mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finqa_cli.types import AssistantTurn, ToolCall
from finqa_plugins.engines._http.json_documents import refuse_constant
from finqa_plugins.engines._http.usage import Usage

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"
THOUGHTS = re.compile(re.escape(THINK_OPEN) + "(.*?)" + re.escape(THINK_CLOSE), re.DOTALL)
NOTHING_SAID = "(empty reply)"
"""Placeholder for an empty reply in the history: several servers refuse a message without content."""

MAX_DEPTH = 64
"""Largest nesting of arguments. A deeper value could still be parsed, but exceed the recursion limit when written."""

_WRITTEN = re.compile(re.escape(CALL_OPEN) + "(.*?)" + f"(?:{re.escape(CALL_CLOSE)}|$)", re.DOTALL)
_CONTROL = re.compile(r"<\|.*$", re.DOTALL)


class CallError(Exception):
    """Describes an invalid call, in a message for the model."""


class NoCallError(CallError):
    """There is no call: the turn is plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn and its usage. `written_call`: the text contains a call, which the server should have parsed."""

    turn: AssistantTurn
    usage: Usage
    written_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCall:
    """A call as the server sent it: `arguments` is JSON text or an object."""

    name: object
    arguments: object


def valid_text(text: str) -> str:
    """`text` with question marks for lone surrogates, which are not valid Unicode."""
    return text.encode("utf-8", errors="replace").decode()


def with_thoughts(thoughts: str, said: str) -> str:
    """The text of a turn whose reasoning the server sends apart."""
    return valid_text(f"{THINK_OPEN}{thoughts}{THINK_CLOSE}{said}" if thoughts else said)


def reply_of(
    said: str,
    calls: Sequence[GivenCall],
    *,
    usage: Usage,
    stop: Literal["stop", "length"],
    tools: bool,
    several_calls: bool,
    withheld: bool = False,
) -> Reply:
    """The turn of a reply.

    Args:
        said: Reasoning and text.
        calls: The calls that the server parsed.
        usage: Tokens used.
        stop: Why the reply ended.
        tools: Whether tools were offered; without them only the text counts.
        several_calls: Whether one turn may have several calls.
        withheld: The server's content filter withheld the reply.
    """
    if not tools:
        return Reply(turn=AssistantTurn(text=said, stop=stop), usage=usage)
    words, written = said, False
    if not calls and CALL_OPEN in said.rpartition(THINK_CLOSE)[2]:
        written, (words, calls) = True, _written_calls(said)
    try:
        found = _read_calls(calls, written, several_calls)
    except CallError as error:
        text = said if written else "\n".join(filter(None, (said, *map(_as_written, calls))))
        turn = AssistantTurn(
            text=text,
            parse_error=f"{error}{' The reply was withheld by the content filter of the server.' if withheld else ''}",
            stop=stop,
            no_call=isinstance(error, NoCallError) and not withheld,
        )
        return Reply(turn=turn, usage=usage, written_call=written)
    return Reply(turn=AssistantTurn.calling(*found, words=words, stop=stop), usage=usage, written_call=written)


def unreadable_reply(reason: str, written: str) -> Reply:
    """The turn for a call that the server could not parse; it answered with an error instead of the call."""
    turn = AssistantTurn(text=valid_text(written), parse_error=valid_text(f"The tool call cannot be read: {reason}"))
    return Reply(turn=turn, usage=Usage(requests=1, unmetered=1))


def _written_calls(said: str) -> tuple[str, list[GivenCall]]:
    """The text without the calls in it, and these calls; a call without an object has neither name nor arguments."""
    before, close, after = said.rpartition(THINK_CLOSE)
    calls = []
    for written in _WRITTEN.findall(after):
        try:
            found = json.loads(written, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            found = None
        facts = found if isinstance(found, dict) else {}
        calls.append(GivenCall(name=facts.get("name"), arguments=facts.get("arguments", facts.get("parameters"))))
    return f"{before}{close}{_WRITTEN.sub('', after).strip()}", calls


def _read_calls(calls: Sequence[GivenCall], written: bool, several: bool) -> tuple[ToolCall, ...]:
    if not calls:
        raise NoCallError("No tool call found. Call one of the tools.")
    if written and not all(isinstance(call.name, str) and call.name for call in calls):
        raise CallError(f"A tool call was written as text ({CALL_OPEN}). Call the tool itself.")
    if len(calls) > 1 and not several:
        raise CallError(f"{len(calls)} tool calls found. Make exactly one tool call per turn.")
    return tuple(map(_read_call, calls))


def _read_call(given: GivenCall) -> ToolCall:
    name = _CONTROL.sub("", given.name).strip() if isinstance(given.name, str) else ""  # gpt-oss: name<|channel|>...
    if not name:
        raise CallError("The tool call has no name.")
    arguments = _arguments(given.arguments)
    call = ToolCall(name=name, arguments=arguments)
    if _is_deep(arguments):
        raise CallError(f"The arguments are nested more than {MAX_DEPTH} levels deep.")
    if not _can_be_written(name) or not _can_be_written(arguments):
        raise CallError("The arguments contain a lone surrogate or a number that is not finite.")
    return call


def _arguments(given: object) -> Mapping[str, Any]:
    """The arguments: JSON text by the protocol. Some servers send an object, nothing, or JSON text of JSON text."""
    for _ in range(2):
        if isinstance(given, str) and given.strip():
            try:
                given = json.loads(given, parse_constant=refuse_constant)
            except json.JSONDecodeError as error:
                raise CallError(f"The arguments are not valid JSON: {error.msg} at position {error.pos}.") from error
            except (ValueError, RecursionError) as error:  # a constant such as NaN, too many digits, too deeply nested
                raise CallError(f"The arguments are not valid JSON: {error}.") from error
    if given is None or (isinstance(given, str) and not given.strip()):
        given = {}
    if not isinstance(given, dict):
        raise CallError("The arguments must be a JSON object.")
    return given


def _as_written(call: GivenCall) -> str:
    arguments = call.arguments
    raw = arguments if isinstance(arguments, str) else "..." if _is_deep(arguments) else json.dumps(arguments)
    name = json.dumps(call.name) if isinstance(call.name, str) else "null"
    return valid_text(f'{CALL_OPEN}\n{{"name": {name}, "arguments": {raw}}}\n{CALL_CLOSE}')


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level if isinstance(one, (dict, list)) for item in _items(one)]
        if not level:
            return False
    return True


def _items(container: dict[str, Any] | list[Any]) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else container


def _can_be_written(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True
