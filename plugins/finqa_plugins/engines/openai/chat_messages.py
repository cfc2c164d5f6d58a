"""Requests and replies of chat completions: messages to a request body, a reply to an assistant turn. Pure.

Protocol: https://platform.openai.com/docs/api-reference/chat/create and .../chat/object. Ids of calls are made from
their positions and have nine letters and digits, because Mistral's chat templates refuse others. Every reply
gives a turn or a BadReplyError.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finqa_cli.types import AssistantTurn, ChatRequest, Message, ToolCall, transcribe_calls
from finqa_plugins.engines._http.json_documents import BadReplyError, first_choice, refuse_constant
from finqa_plugins.engines._http.usage import Usage, read_usage
from finqa_plugins.engines.openai.config import OpenAIEngineConfig

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"
_THOUGHTS = re.compile(re.escape(THINK_OPEN) + "(.*?)" + re.escape(THINK_CLOSE), re.DOTALL)
NOTHING_SAID = "(empty reply)"
"""Placeholder for an empty reply in the history: several servers refuse a message without content."""


def request_body(request: ChatRequest, model: str, config: OpenAIEngineConfig) -> dict[str, Any]:
    """The JSON body of the request."""
    sampling = request.sampling
    body: dict[str, Any] = {
        **config.extra_body,
        "model": model,
        "messages": chat_messages(request.messages, config.thoughts_field),
        config.limit_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,  # sent even when it is 1: vLLM would take the model's own default
        "seed": turn_seed(sampling.seed, request.key),
    }
    if request.tools:
        body["tools"] = [tool.as_function() for tool in request.tools]
        body["parallel_tool_calls"] = request.several_calls
    return {name: value for name, value in body.items() if name not in config.omit}


def turn_seed(seed: int, key: str) -> int:
    """A seed of 31 bits, which every server accepts. It differs per turn: a prompt may occur twice in an episode."""
    turn = key.rpartition("#")[2]
    return int.from_bytes(hashlib.blake2b(f"{seed}\x1f{turn}".encode(), digest_size=4).digest(), "big") >> 1


def chat_messages(messages: Sequence[Message], thoughts_field: str | None = None) -> list[dict[str, Any]]:
    """The history in OpenAI's form.

    The reply to an unreadable call is sent as a user message, because a tool message must answer a call. Images that
    tools return are sent as user messages too. Reasoning is left out unless `thoughts_field` names a field for it:
    servers whose chat template has no place for reasoning would treat it as ordinary text.
    """
    chat: list[dict[str, Any]] = []
    open_calls, shown = deque[str](), tuple[str, ...]()
    for place, message in enumerate(messages):
        if message.role == "assistant":
            open_calls = deque(f"call{place + call:05d}" for call in range(len(message.calls)))
            chat.append(_assistant(message, open_calls, thoughts_field))
        elif message.role == "tool" and open_calls:
            name = open_calls.popleft()
            chat.append({"role": "tool", "tool_call_id": name, "content": valid_text(message.content)})
            shown += message.images
            if shown and not (place + 1 < len(messages) and messages[place + 1].role == "tool"):
                seen, shown = shown, ()  # messages of tools take text only
                chat.append({"role": "user", "content": _content("", seen)})
        else:
            role = "user" if message.role == "tool" else message.role
            chat.append({"role": role, "content": _content(message.content, message.images)})
    return chat


def _content(text: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    """The text, or content parts if there are images."""
    if not images:
        return valid_text(text)
    words = [{"type": "text", "text": valid_text(text)}] if text else []
    return [*words, *({"type": "image_url", "image_url": {"url": address}} for address in images)]


def valid_text(text: str) -> str:
    """`text` with question marks for lone surrogates, which are not valid Unicode."""
    return text.encode("utf-8", errors="replace").decode()


def _assistant(message: Message, names: Sequence[str], thoughts_field: str | None) -> dict[str, Any]:
    found = _THOUGHTS.match(message.content)
    said = message.content[found.end() :] if found else message.content
    thoughts = {thoughts_field: valid_text(found[1])} if found and thoughts_field else {}
    if not message.calls:
        return {"role": "assistant", **thoughts, "content": valid_text(said) or NOTHING_SAID}
    content = valid_text(said.removesuffix(transcribe_calls(message.calls)).rstrip("\n"))
    functions = (
        {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)} for call in message.calls
    )
    calls = [
        {"id": name, "type": "function", "function": function} for name, function in zip(names, functions, strict=True)
    ]
    return {"role": "assistant", **thoughts, "content": content, "tool_calls": calls}


MAX_DEPTH = 64
"""Largest nesting of arguments. A deeper value could still be parsed, but exceed the recursion limit when written."""


class _CallError(Exception):
    """Describes an invalid call, in a message for the model."""


class _NoCallError(_CallError):
    """There is no call: the turn is plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn and its usage. `written_call`: the text contains a call, which the server should have parsed."""

    turn: AssistantTurn
    usage: Usage
    written_call: bool = False


def read_reply(document: Mapping[str, Any], *, tools: bool, several_calls: bool = False) -> Reply:
    """Reads the first choice of a chat completion.

    Args:
        document: The server's reply.
        tools: Whether tools were offered; without them only the text counts.
        several_calls: Whether one turn may have several calls.

    Raises:
        BadReplyError: The reply is not a chat completion.
    """
    choice = first_choice(document)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadReplyError("the reply has no choices[0].message")
    finish, usage, said = choice.get("finish_reason"), read_usage(document), _said(message)
    stop: Literal["stop", "length"] = "length" if finish == "length" else "stop"
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadReplyError("message.tool_calls is not a list")
    if not tools:
        return Reply(turn=AssistantTurn(text=said, stop=stop), usage=usage)
    written = not calls and CALL_OPEN in said.rpartition(THINK_CLOSE)[2]
    try:
        found = _read_calls(calls, written, several_calls)
    except _CallError as error:
        text = "\n".join(filter(None, (said, *(_as_written(one) for one in calls))))
        return Reply(
            turn=AssistantTurn(
                text=text,
                parse_error=f"{error}{_ending(finish)}",
                stop=stop,
                no_call=isinstance(error, _NoCallError) and finish != "content_filter",
            ),
            usage=usage,
            written_call=written,
        )
    return Reply(turn=AssistantTurn.calling(*found, words=said, stop=stop), usage=usage)


def unreadable_reply(reason: str, written: str) -> Reply:
    """The turn for a call that the server could not parse; it answered with an error instead of the call."""
    turn = AssistantTurn(text=valid_text(written), parse_error=valid_text(f"The tool call cannot be read: {reason}"))
    return Reply(turn=turn, usage=Usage(requests=1, unmetered=1))


def _said(message: Mapping[str, Any]) -> str:
    """The reasoning, if the server sends it in a field of its own, then the text or the refusal."""
    content = message.get("content")
    if isinstance(content, list):  # content parts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    content = content or message.get("refusal") or ""
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(content, str):
        raise BadReplyError("message.content is not a text")
    if isinstance(thoughts, str) and thoughts:
        content = f"{THINK_OPEN}{thoughts}{THINK_CLOSE}{content}"
    return valid_text(content)


def _read_calls(calls: list[Any], written: bool, several: bool) -> tuple[ToolCall, ...]:
    if written:
        raise _CallError(f"A tool call was written as text ({CALL_OPEN}). Call the tool itself.")
    if not calls:
        raise _NoCallError("No tool call found. Call one of the tools.")
    if len(calls) > 1 and not several:
        raise _CallError(f"{len(calls)} tool calls found. Make exactly one tool call per turn.")
    return tuple(map(_read_call, calls))


def _read_call(given: Any) -> ToolCall:
    function = _function(given)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _CallError("The tool call has no name.")
    arguments = _arguments(function.get("arguments"))
    call = ToolCall(name=name, arguments=arguments)
    if _is_deep(arguments):
        raise _CallError(f"The arguments are nested more than {MAX_DEPTH} levels deep.")
    if not _can_be_written(name) or not _can_be_written(arguments):
        raise _CallError("The arguments contain a lone surrogate or a number that is not finite.")
    return call


def _arguments(given: object) -> Mapping[str, Any]:
    """The arguments: JSON text by the protocol. Some servers send an object, or nothing if there are no arguments."""
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given, parse_constant=refuse_constant)
        except json.JSONDecodeError as error:
            raise _CallError(f"The arguments are not valid JSON: {error.msg} at position {error.pos}.") from error
        except (ValueError, RecursionError) as error:  # a constant such as NaN, too many digits, too deeply nested
            raise _CallError(f"The arguments are not valid JSON: {error}.") from error
    elif given is None or isinstance(given, str):
        given = {}
    if not isinstance(given, dict):
        raise _CallError("The arguments must be a JSON object.")
    return given


def _as_written(call: object) -> str:
    function = _function(call)
    arguments = function.get("arguments")
    raw = arguments if isinstance(arguments, str) else "..." if _is_deep(arguments) else json.dumps(arguments)
    return valid_text(f'{CALL_OPEN}\n{{"name": {json.dumps(function.get("name"))}, "arguments": {raw}}}\n{CALL_CLOSE}')


def _function(call: object) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _ending(finish: object) -> str:
    return " The reply was withheld by the server's content filter." if finish == "content_filter" else ""


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
