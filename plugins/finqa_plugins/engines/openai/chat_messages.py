"""Requests and replies of chat completions: messages to a request body, a reply to an assistant turn. Pure.

Protocol: https://platform.openai.com/docs/api-reference/chat/create and .../chat/object. Ids of calls are made from
their positions and have nine letters and digits, because Mistral's chat templates refuse others. Every reply
gives a turn or a BadReplyError.
"""

from __future__ import annotations

import hashlib
import json
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
from finqa_plugins.engines._http.json_documents import BadReplyError, first_choice
from finqa_plugins.engines._http.usage import read_usage
from finqa_plugins.engines.openai.config import OpenAIEngineConfig


def request_body(request: ChatRequest, model: str, config: OpenAIEngineConfig) -> dict[str, Any]:
    """The JSON body of the request."""
    sampling = request.sampling
    body: dict[str, Any] = {
        **config.extra_body,
        "model": model,
        "messages": _arranged(chat_messages(request.messages, config.thoughts_field), config),
        config.limit_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,  # sent even when it is 1: vLLM would take the model's own default
        "seed": turn_seed(sampling.seed, request.key),
    }
    if request.tools:
        body["tools"] = [tool.as_function() for tool in request.tools]
        body["parallel_tool_calls"] = request.several_calls
    return {name: value for name, value in body.items() if name not in config.omit}


def _arranged(chat: list[dict[str, Any]], config: OpenAIEngineConfig) -> list[dict[str, Any]]:
    """The history without a system message, or with alternating roles, where the model needs that."""
    if config.system_message == "fold" and len(chat) > 1 and (chat[0]["role"], chat[1]["role"]) == ("system", "user"):
        chat = [{"role": "user", "content": _joined(chat[0]["content"], chat[1]["content"])}, *chat[2:]]
    if config.roles == "as_sent":
        return chat
    arranged: list[dict[str, Any]] = []
    for message in chat:
        before = arranged[-1] if arranged else {}
        if message["role"] == before.get("role") and message["role"] != "tool" and "tool_calls" not in before:
            arranged[-1] = {**before, **message, "content": _joined(before["content"], message["content"])}
        else:
            arranged.append(message)
    return arranged


def _joined(first: Any, second: Any) -> Any:
    """The contents of two messages as one: text, or parts if one of them has parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    return [part for each in parts for part in each]


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


def _assistant(message: Message, names: Sequence[str], thoughts_field: str | None) -> dict[str, Any]:
    found = THOUGHTS.match(message.content)
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
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadReplyError("message.tool_calls is not a list")
    if not calls and isinstance(message.get("function_call"), dict):  # the protocol until 2023
        calls = [{"function": message["function_call"]}]
    finish = choice.get("finish_reason")
    return reply_of(
        _said(message),
        [_given(call) for call in calls],
        usage=read_usage(document),
        stop="length" if finish == "length" else "stop",
        tools=tools,
        several_calls=several_calls,
        withheld=finish == "content_filter",
    )


def _said(message: Mapping[str, Any]) -> str:
    """The reasoning, if the server sends it in a field of its own, then the text or the refusal."""
    content = message.get("content")
    if isinstance(content, list):  # content parts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    content = content or message.get("refusal") or ""
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(content, str):
        raise BadReplyError("message.content is not a text")
    return with_thoughts(thoughts if isinstance(thoughts, str) else "", content)


def _given(call: object) -> GivenCall:
    """A call of the list; some servers leave out the level `function`."""
    facts: Mapping[str, Any] = call if isinstance(call, dict) else {}
    function = facts.get("function", facts)
    function = function if isinstance(function, dict) else {}
    return GivenCall(name=function.get("name"), arguments=function.get("arguments"))
