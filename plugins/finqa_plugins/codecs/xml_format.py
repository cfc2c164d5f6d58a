"""The `xml` format of Qwen3-Coder and its successors: one tag per parameter, values as plain text.

Source: the published chat templates of these models. A string is written as it is, an object or a list as JSON, any
other value as Python's `str` writes it. So a call is parsed with the tool's schema, which gives the types.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from finqa_cli.contracts import CallError, Schemas
from finqa_cli.types import ToolCall
from finqa_plugins.codecs.json_formats import CALL_CLOSE, CALL_OPEN, TaggedFormat, load_json

_FUNCTION_CLOSE = "</function>"
_VALUE_CLOSE = "</parameter>"
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_INTEGER = re.compile(r"-?[0-9]{1,4000}")  # Python refuses to convert more than 4300 digits
_NUMBER = re.compile(rf"{_INTEGER.pattern}(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_REST = re.compile(r"\s*\Z")
_CALL_CONTINUES = re.compile(r"\s*(?:<parameter=|</function>|\Z)")
EXAMPLE = f"{CALL_OPEN}\n<function=<tool>>\n<parameter=<name>>\nvalue\n{_VALUE_CLOSE}\n{_FUNCTION_CLOSE}\n{CALL_CLOSE}"


class XmlFormat(TaggedFormat):
    """A tag for each parameter between the tags of the call."""

    separator = "\n\n"
    jinja = (
        "{{- '<tool_call>\\n<function=' + name + '>\\n' }}"
        "{%- for key, value in arguments.items() %}"
        "{%- set text = value if value is string else (value | tojson) if value is mapping or "
        "(value is iterable) else (value | string) %}"
        "{{- '<parameter=' + key + '>\\n' + text + '\\n</parameter>\\n' }}"
        "{%- endfor %}"
        "{{- '</function>\\n</tool_call>' }}"
    )
    example = EXAMPLE

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        values = (f"<parameter={key}>\n{_write(value)}\n{_VALUE_CLOSE}\n" for key, value in call.arguments.items())
        return f"{CALL_OPEN}\n<function={call.name}>\n{''.join(values)}{_FUNCTION_CLOSE}\n{CALL_CLOSE}"

    def read(self, body: str, schemas: Schemas) -> ToolCall:
        """See `TaggedFormat.read`."""
        opening = _FUNCTION.match(body)
        if opening is None:
            raise CallError(f"The tool call names no function. Call one tool like this:\n{EXAMPLE}")
        if not body.endswith(_FUNCTION_CLOSE):
            raise CallError(f"The function is not closed: {_FUNCTION_CLOSE} is missing.")
        declared = schemas.get(opening[1], {}).get("properties")
        properties: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
        texts = _values(body[opening.end() : -len(_FUNCTION_CLOSE)])
        arguments = {key: _read(key, text, properties.get(key, {})) for key, text in texts.items()}
        return ToolCall(name=opening[1], arguments=arguments)


def _values(body: str) -> dict[str, str]:
    values: dict[str, str] = {}
    at = 0
    while not _REST.match(body, at):
        opening = _PARAMETER.match(body, at)
        if opening is None:
            raise CallError(f"Between the function's tags only parameters may stand. Write:\n{EXAMPLE}")
        key = opening[1]
        if key in values:
            raise CallError(f"The parameter {key!r} is given twice.")
        end = _value_end(body, opening.end(), key)
        value = body[opening.end() : end]
        values[key] = value.removeprefix("\n").removesuffix("\n")
        at = end + len(_VALUE_CLOSE)
    return values


def _value_end(body: str, at: int, key: str) -> int:
    """Where the value's closing tag is: the first after which the call continues, so that a value may contain tags."""
    while (at := body.find(_VALUE_CLOSE, at)) >= 0:
        if _CALL_CONTINUES.match(body, at + len(_VALUE_CLOSE)):
            return at
        at += len(_VALUE_CLOSE)
    raise CallError(f"The parameter {key!r} is not closed: {_VALUE_CLOSE} is missing.")


def _write(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | tuple) else str(value)


def _read(key: str, text: str, schema: Any) -> Any:
    """The value of `text` according to its schema; text that fits no other type stays a string.

    The environment validates arguments and reports a wrong type to the model.
    """
    types = set(_types(schema))
    word = text.strip()
    if "null" in types and word in ("None", "null"):
        return None
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if types & {"integer", "number"} and _NUMBER.fullmatch(word):
        number = float(word)
        return int(word) if _INTEGER.fullmatch(word) else number if math.isfinite(number) else text
    if types & {"object", "array"} and "string" not in types:
        try:
            return load_json(word)
        except CallError as error:
            raise CallError(f"The parameter {key!r} must be JSON. {error}") from error
    return text


def _types(schema: Any) -> Iterable[str]:
    if not isinstance(schema, Mapping):
        return
    named = schema.get("type")
    yield from (one for one in (named if isinstance(named, list | tuple) else [named]) if isinstance(one, str))
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        for option in options if isinstance(options, list | tuple) else ():
            yield from _types(option)
