"""Converts actions and observations of any OpenEnv server to tools, texts and images. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import ToolSpec
from finqa_plugins.environments._task_files.content_parts import image_address

_OF_EVERY_ACTION = ("metadata",)
_OF_EVERY_OBSERVATION = ("done", "reward", "metadata")
_IMAGES = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
"""How PNG, JPEG, GIF and WebP files begin in base64."""
_SMALLEST_IMAGE = 40


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


def read_observation(observation: Mapping[str, Any], only: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Return what the model gets of a typed observation: a text, and the addresses of its images.

    The text is the only field, or a line `name: value` for each. Fields of every observation (done, reward, metadata)
    and empty ones are left out. A field that is an image file in base64 or a data URI, or a list of them, is images.

    Args:
        observation: The observation.
        only: Names of the fields that are shown; empty: all.
    """
    fields = {
        name: value
        for name, value in observation.items()
        if (name in only if only else name not in _OF_EVERY_OBSERVATION) and value not in (None, "", [], {})
    }
    images = {name: found for name, value in fields.items() if (found := _images(value))}
    shown = {name: _as_text(value) for name, value in fields.items() if name not in images}
    text = (
        next(iter(shown.values()))
        if len(shown) == 1
        else "\n".join(f"{name}: {value}" for name, value in shown.items())
    )
    return text, tuple(address for found in images.values() for address in found)


def _images(value: Any) -> tuple[str, ...]:
    """Return the addresses of a field that has images and nothing else; empty for another field."""
    listed = value if isinstance(value, list) else [value]
    found = [_image(each) if isinstance(each, str) else None for each in listed]
    return tuple(address for address in found if address) if all(found) else ()


def _image(text: str) -> str | None:
    """Return the address of an image; None for other texts."""
    if text.startswith("data:image/") and ";base64," in text[:64]:
        return text
    if not text.startswith(_IMAGES) or len(text) < _SMALLEST_IMAGE:
        return None
    try:
        return image_address(base64.b64decode(text, validate=True))
    except binascii.Error:
        return None


def shorten(text: str, limit: int | None) -> str:
    """Return a text of at most `limit` characters: its beginning and its end, with a note of what is left out."""
    if limit is None or len(text) <= limit:
        return text
    note = f"\n... {len(text)} characters in all ...\n"
    kept = max(0, limit - len(note))
    head = kept // 2
    return (text[:head] + note + text[len(text) - (kept - head) :])[:limit]


def read_result(observation: Mapping[str, Any]) -> tuple[str, tuple[str, ...], bool]:
    """Return what the model gets of a tool's reply: a text, the addresses of its images, and whether it is an error.

    A result is a value, or an MCP result with `data`, `structured_content`, or parts that are texts and images.

    Raises:
        EnvironmentFault: The result has parts that are neither texts nor images that models read.
    """
    error = observation.get("error")
    if error:
        message = error.get("message", error) if isinstance(error, Mapping) else error
        return f"Error: {message}", (), True
    if "result" not in observation:
        return *read_observation(observation), False
    result = observation["result"]
    if not isinstance(result, Mapping):
        return _as_text(result), (), False
    failed = bool(result.get("is_error") or result.get("isError"))
    content = result.get("content")
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    images = tuple(_image_of_part(part) for part in parts if part.get("type") == "image")
    for name in ("data", "structured_content", "structuredContent"):
        if result.get(name) is not None:
            return _as_text(result[name]), images, failed
    if not isinstance(content, list):
        return _as_text(dict(result)), (), failed
    if others := [str(part.get("type")) for part in parts if part.get("type") not in ("text", "image")]:
        kind = "".join(each if each.isprintable() else " " for each in others[0][:40])
        raise EnvironmentFault(f"The server's reply has content of type {kind}; only text and images are supported.")
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text"), images, failed


def _image_of_part(part: Mapping[str, Any]) -> str:
    address = _image(str(part.get("data")))
    if address is None:
        raise EnvironmentFault("The server's reply has an image that is no PNG, JPEG, GIF or WebP file in base64.")
    return address


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
