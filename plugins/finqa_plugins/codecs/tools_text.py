"""Tools in words, for models whose chat template has no place for them. Pure text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finqa_cli.contracts import CallFormat
from finqa_cli.types import ToolCall, ToolSpec

_PLAIN_KEYS = {"type", "title", "description"}


def tools_text(tools: Sequence[ToolSpec], form: CallFormat) -> str:
    """A line for each tool and each described argument, and how a call is written."""
    example = form.render(ToolCall(name="tool", arguments={"argument": "value"}))
    lines = ["You can call these tools:", *(line for tool in tools for line in _lines(tool))]
    return "\n".join([*lines, "Call one tool per turn and wait for its reply. A call is written like this:", example])


def _lines(tool: ToolSpec) -> Iterator[str]:
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    arguments = (f"{name}{'' if name in required else '?'}: {_kind(schema)}" for name, schema in properties.items())
    yield f"- {tool.name}({', '.join(arguments)}): {tool.description}"
    for name, schema in properties.items():
        if isinstance(schema, Mapping) and "description" in schema:
            yield f"  {name}: {schema['description']}"


def _kind(schema: Any) -> str:
    """The type by its name, or the whole schema where it says more than that."""
    if not isinstance(schema, Mapping):
        return json.dumps(schema)
    kind = schema.get("type")
    if isinstance(kind, str) and schema.keys() <= _PLAIN_KEYS:
        return kind
    return json.dumps({key: value for key, value in schema.items() if key != "description"}, ensure_ascii=False)
