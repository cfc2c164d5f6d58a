"""Requests and replies of Anthropic's messages API. Pure.

Protocol: https://docs.anthropic.com/en/api/messages, with tools (`tool_use` and `tool_result` blocks), extended
thinking, `cache_control` and usage. The API has no seed. Models since Claude 4.1 reject a request that sets both
temperature and top_p, so top_p is sent only where it selects.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.types import ChatRequest, Message, transcribe_calls
from finqa_plugins.engines._http.chat_replies import (
    NOTHING_SAID,
    THOUGHTS,
    GivenCall,
    Reply,
    reply_of,
    valid_text,
    with_thoughts,
)
from finqa_plugins.engines._http.json_documents import BadReplyError
from finqa_plugins.engines._http.usage import MOST_TOKENS, Usage
from finqa_plugins.engines.anthropic.config import AnthropicConfig

Blocks = Sequence[Mapping[str, Any]]
"""Content of one message."""

_CACHED = {"cache_control": {"type": "ephemeral"}}
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,(.*)", re.DOTALL)


def request_body(
    request: ChatRequest, model: str, config: AnthropicConfig, replies: Mapping[str, Blocks]
) -> dict[str, Any]:
    """The JSON body of the request, without its limit of tokens.

    Args:
        request: The conversation.
        model: Name of the model.
        config: Options.
        replies: Text of an earlier turn -> its content as the server sent it, with signed reasoning.
    """
    system = [message.content for message in request.messages if message.role == "system"]
    body: dict[str, Any] = {"model": model, "messages": conversation(request.messages, replies)}
    if system:
        body["system"] = [_text("\n\n".join(system))]
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in request.tools
        ]
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": not request.several_calls}
    if config.thinking_tokens is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": config.thinking_tokens}
    elif "temperature" not in config.omit:
        body["temperature"] = min(request.sampling.temperature, 1.0)
        if request.sampling.top_p < 1.0:
            body["top_p"] = request.sampling.top_p
    if config.cache:
        _mark_cached(body)
    return body


def conversation(messages: Sequence[Message], replies: Mapping[str, Blocks]) -> list[dict[str, Any]]:
    """The history in Anthropic's form: alternating roles, and all results of a turn's calls in one user message.

    The reply to an unreadable call is sent as text of the user, because a result must answer a call.
    """
    chat: list[dict[str, Any]] = []
    open_calls = deque[str]()
    for place, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.role == "assistant":
            blocks = _assistant(message, place, replies.get(message.content, ()))
            open_calls = deque(str(block["id"]) for block in blocks if block["type"] == "tool_use")
            role = "assistant"
        elif message.role == "tool" and open_calls:
            content = [_text(message.content or NOTHING_SAID), *map(_image, message.images)]
            blocks = [{"type": "tool_result", "tool_use_id": open_calls.popleft(), "content": content}]
            role = "user"
        else:
            said = [_text(message.content)] if message.content or not message.images else []
            blocks, role = [*said, *map(_image, message.images)], "user"
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += blocks
        else:
            chat.append({"role": role, "content": blocks})
    return chat


def read_reply(document: Mapping[str, Any], *, tools: bool, several_calls: bool = False) -> Reply:
    """Reads a message.

    Args:
        document: The server's reply.
        tools: Whether tools were offered; without them only the text counts.
        several_calls: Whether one turn may have several calls.

    Raises:
        BadReplyError: The reply is not a message of the assistant.
    """
    content = document.get("content")
    if document.get("type") != "message" or not isinstance(content, list):
        raise BadReplyError("the reply is not a message with content")
    blocks = [block for block in content if isinstance(block, dict)]
    said = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    thoughts = "".join(str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking")
    calls = [
        GivenCall(name=block.get("name"), arguments=block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    stop = document.get("stop_reason")
    return reply_of(
        with_thoughts(thoughts, said),
        calls,
        usage=read_usage(document.get("usage")),
        stop="length" if stop in ("max_tokens", "model_context_window_exceeded") else "stop",
        tools=tools,
        several_calls=several_calls,
        withheld=stop == "refusal",
    )


def read_usage(given: object) -> Usage:
    """The usage of a reply. `input_tokens` are only those after the last cached one; others are counted apart."""
    usage: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    fresh, cached, written, sampled = (_count(usage.get(name)) for name in names)
    prompt = fresh + cached + written
    if not prompt or usage.get("output_tokens") is None:
        return Usage(requests=1, unmetered=1)
    return Usage(
        requests=1,
        prompt_tokens=prompt,
        cached_tokens=cached,
        written_tokens=written,
        completion_tokens=sampled,
    )


def _assistant(message: Message, place: int, sent: Blocks) -> list[dict[str, Any]]:
    calls = [block for block in sent if block.get("type") == "tool_use"]
    if sent and len(calls) == len(message.calls):
        return [dict(block) for block in sent]
    found = THOUGHTS.match(message.content)
    said = message.content[found.end() :] if found else message.content
    if message.calls:
        said = said.removesuffix(transcribe_calls(message.calls)).rstrip("\n")
    blocks = [_text(said)] if said.strip() or not message.calls else []
    for number, call in enumerate(message.calls):
        name = f"call{place + number:05d}"
        blocks.append({"type": "tool_use", "id": name, "name": call.name, "input": dict(call.arguments)})
    return blocks


def _text(text: str) -> dict[str, Any]:
    """A block of text; the API rejects an empty one."""
    return {"type": "text", "text": valid_text(text) if text.strip() else NOTHING_SAID}


def _image(address: str) -> dict[str, Any]:
    if found := _DATA_URL.fullmatch(address):
        return {"type": "image", "source": {"type": "base64", "media_type": found[1], "data": found[2]}}
    return {"type": "image", "source": {"type": "url", "url": address}}


def _mark_cached(body: dict[str, Any]) -> None:
    """Marks the end of tools and system message, and the end of the conversation, which the next turn continues."""
    if "system" in body:
        body["system"][-1] |= _CACHED
    elif "tools" in body:
        body["tools"][-1] |= _CACHED
    last = body["messages"][-1]["content"] if body["messages"] else []
    if last and last[-1]["type"] in ("text", "tool_result", "image"):
        last[-1] = {**last[-1], **_CACHED}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else 0
