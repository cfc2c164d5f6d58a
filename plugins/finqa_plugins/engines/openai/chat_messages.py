"""From our messages to the body of a chat completion request. Pure.

Protocol: https://platform.openai.com/docs/api-reference/chat/create. One call a turn; ids of calls are made from
their places, nine letters and digits long, because Mistral's chat templates refuse others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from finqa_cli.types import ChatRequest, Message, ToolCall
from finqa_plugins.engines.openai.config import OpenAIEngineConfig

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"
_THOUGHTS = re.compile(re.escape(THINK_OPEN) + "(.*?)" + re.escape(THINK_CLOSE), re.DOTALL)
NOTHING_SAID = "(empty reply)"
"""Stands for an empty reply in the history: several servers refuse a message without content."""


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
        body["parallel_tool_calls"] = False  # an episode answers one call at a time
    return {name: value for name, value in body.items() if name not in config.omit}


def turn_seed(seed: int, key: str) -> int:
    """31 bits, which every server takes, different for each turn: the same prompt may come twice in an episode."""
    turn = key.rpartition("#")[2]
    return int.from_bytes(hashlib.blake2b(f"{seed}\x1f{turn}".encode(), digest_size=4).digest(), "big") >> 1


def chat_messages(messages: Sequence[Message], thoughts_field: str | None = None) -> list[dict[str, Any]]:
    """The history in OpenAI's form.

    What came back for an unreadable call is a user message there, because a tool message must answer a call. Thoughts
    are left out unless a field is named: servers without a template that knows them would count them as words.
    """
    chat: list[dict[str, Any]] = []
    open_call = ""
    for place, message in enumerate(messages):
        if message.role == "assistant":
            open_call = f"call{place:05d}" if message.tool_call is not None else ""
            chat.append(_assistant(message, open_call, thoughts_field))
        elif message.role == "tool" and open_call:
            chat.append({"role": "tool", "tool_call_id": open_call, "content": valid_text(message.content)})
            open_call = ""
        else:
            role = "user" if message.role == "tool" else message.role
            chat.append({"role": role, "content": valid_text(message.content)})
    return chat


def render_call(call: ToolCall) -> str:
    """The call as text, for transcripts: the form that the field's chat templates write (Hermes)."""
    payload = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"{CALL_OPEN}\n{payload}\n{CALL_CLOSE}"


def valid_text(text: str) -> str:
    """Lone surrogates, which are no text, become question marks."""
    return text.encode("utf-8", errors="replace").decode()


def _assistant(message: Message, call_id: str, thoughts_field: str | None) -> dict[str, Any]:
    found = _THOUGHTS.match(message.content)
    said = message.content[found.end() :] if found else message.content
    thoughts = {thoughts_field: valid_text(found[1])} if found and thoughts_field else {}
    call = message.tool_call
    if call is None:
        return {"role": "assistant", **thoughts, "content": valid_text(said) or NOTHING_SAID}
    content = valid_text(said.removesuffix(render_call(call)).rstrip("\n"))
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", **thoughts, "content": content, "tool_calls": calls}
