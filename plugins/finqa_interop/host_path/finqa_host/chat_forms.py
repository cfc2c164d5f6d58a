"""Shared by both libraries: messages in the form of chat completions, and exceptions that stop or refuse episodes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Ask = Callable[[list[dict[str, Any]], list[dict[str, Any]]], Awaitable[dict[str, Any]]]
"""Messages and tools -> the next assistant message of the model under test."""


class StopEpisode(Exception):
    """The episode is stopped, because the policy reached a limit."""


class RefusalError(Exception):
    """The environment cannot be run; `remedy` says what to do instead."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def text_of(prompt: Any) -> str:
    """Return the text of a prompt, or of the last of its messages."""
    if isinstance(prompt, str) or not prompt:
        return prompt or ""
    content = chat_message(prompt[-1])["content"]
    return content if isinstance(content, str) else json.dumps(content)


def chat_message(message: Any) -> dict[str, Any]:
    """Convert a message of either library to the form of chat completions; raises ValueError for unknown parts."""
    raw = dict(message) if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    made: dict[str, Any] = {"role": raw["role"], "content": _content(raw.get("content"))}
    if calls := raw.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in calls]
    if raw["role"] == "tool":
        error = raw.get("error")
        made["error"] = bool(error)
        made["content"] = made["content"] or (f"Error: {error['message']}" if error else "")
        made["tool_call_id"] = str(raw.get("tool_call_id", ""))
    return made


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in content:
        if part.get("type") == "image":  # Inspect's
            parts.append({"type": "image_url", "image_url": {"url": part["image"]}})
        elif part.get("type") in ("text", "image_url"):
            parts.append({key: value for key, value in part.items() if value is not None})
        elif part.get("type") != "reasoning":
            raise ValueError(f"a message has a part of the type {part.get('type')!r}, which finqa cannot show")
    only_text = all(part["type"] == "text" for part in parts)
    return "\n".join(part["text"] for part in parts) if only_text else parts


def _call(call: Mapping[str, Any]) -> dict[str, str]:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else {**call, "name": call.get("name") or function}
    arguments = named["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": str(call.get("id", "")), "name": str(named["name"]), "arguments": written}
