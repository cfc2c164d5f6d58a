"""Converts actions and observations of any OpenEnv server to tools and texts. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import ToolSpec

_OF_EVERY_ACTION = ("metadata",)
_OF_EVERY_OBSERVATION = ("done", "reward", "metadata")


def action_tool(schema: Mapping[str, Any]) -> ToolSpec:
    """Make one tool from the schema of a server's actions.

    Raises:
        EnvironmentFault: The schema is not that of an object.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        raise EnvironmentFault("The server has no tools, and its schema of actions has no properties.")
    fields = {name: _plain(part) for name, part in properties.items() if name not in _OF_EVERY_ACTION}
    required = [name for name in schema.get("required") or () if name in fields]
    parameters: dict[str, Any] = {"type": "object", "properties": fields, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = _plain(schema["$defs"], of_names=True)
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", str(schema.get("title") or ""))
    name = "_".join(word.lower() for word in words if word != "Action") or "act"
    description = " ".join(str(schema.get("description") or "").split()) or "Take an action in the environment."
    return ToolSpec(name=name, description=description, parameters=parameters)


def only_text(tool: ToolSpec) -> str:
    """Return the name of the action's only required field if that is a free text; empty otherwise."""
    required: list[str] = tool.parameters.get("required") or []
    if len(required) != 1 or tool.parameters["properties"][required[0]].get("type") != "string":
        return ""
    return "" if "enum" in tool.parameters["properties"][required[0]] else str(required[0])


def text_of_observation(observation: Mapping[str, Any], only: Sequence[str] = ()) -> str:
    """Return a typed observation as text for the model: the only field, or a line `name: value` for each field.

    Fields of every observation (done, reward, metadata) and empty ones are left out.

    Args:
        observation: The observation.
        only: Names of the fields that are shown; empty: all.
    """
    fields = {
        name: value
        for name, value in observation.items()
        if (name in only if only else name not in _OF_EVERY_OBSERVATION) and value not in (None, "", [], {})
    }
    if len(fields) == 1:
        return _as_text(next(iter(fields.values())))
    return "\n".join(f"{name}: {_as_text(value)}" for name, value in fields.items())


def shorten(text: str, limit: int | None) -> str:
    """Return a text of at most `limit` characters: its beginning and its end, with a note of what is left out."""
    if limit is None or len(text) <= limit:
        return text
    note = f"\n... {len(text)} characters in all ...\n"
    kept = max(0, limit - len(note))
    head = kept // 2
    return (text[:head] + note + text[len(text) - (kept - head) :])[:limit]


def text_of_result(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a tool's reply as text for the model, and whether it is an error.

    A result is a value, or an MCP result with `data`, `structured_content` or text parts.

    Raises:
        EnvironmentFault: The result has parts that are not text.
    """
    error = observation.get("error")
    if error:
        message = error.get("message", error) if isinstance(error, Mapping) else error
        return f"Error: {message}", True
    if "result" not in observation:
        return text_of_observation(observation), False
    result = observation["result"]
    if not isinstance(result, Mapping):
        return _as_text(result), False
    failed = bool(result.get("is_error") or result.get("isError"))
    for name in ("data", "structured_content", "structuredContent"):
        if result.get(name) is not None:
            return _as_text(result[name]), failed
    content = result.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        texts = [str(part.get("text", "")) for part in parts if part.get("type") == "text"]
        others = [str(part.get("type")) for part in parts if part.get("type") != "text"]
        if others:
            raise EnvironmentFault(f"The server's reply has content of type {others[0]}; only text is supported.")
        return "\n".join(texts), failed
    return _as_text(dict(result)), failed


def _as_text(value: Any) -> str:
    if value is None:
        return "ok"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(schema: Any, *, of_names: bool = False) -> Any:
    """A schema without generated titles."""
    if isinstance(schema, dict):
        kept = {key: part for key, part in schema.items() if of_names or key != "title"}
        inner = () if of_names else ("properties", "$defs")
        return {key: _plain(part, of_names=key in inner) for key, part in kept.items()}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema
