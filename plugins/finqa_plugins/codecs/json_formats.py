"""Call formats that write a call as JSON, and functions that all formats share: parsing JSON and `<tool_call>` tags.

Pure functions of text. `hermes` writes JSON between `<tool_call>` tags, as Qwen2.5, Qwen3 and the embedded policy do.
`llama3_json` writes a bare JSON object with `name` and `parameters`, as Llama 3.1 to 3.3 do. Source of the latter: the
JSON tool calling of Llama 3.1's published prompt format; vLLM's parser of the same name takes `arguments` for
`parameters` as well, and skips `<|python_tag|>`.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from typing import Any, ClassVar

from finqa_cli.contracts import CallError, CallFormat, NoCallError, Schemas
from finqa_cli.types import ToolCall

MAX_DEPTH = 64
"""Largest nesting of a value. A deeper one could still be parsed, but exceed the recursion limit when it is written."""


def load_json(body: str) -> Any:
    """Parses `body` as JSON.

    Raises:
        CallError: `body` is not valid JSON, is too deeply nested, or has a value that cannot be encoded as UTF-8.
    """
    try:
        payload = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from error
    _check_depth(payload)
    _check_unicode(body, payload)
    return payload


def load_leading_json(text: str) -> tuple[Any, str]:
    """The value at the start of `text`, and what follows it.

    Raises:
        CallError: For the same reasons as in `load_json`.
    """
    try:
        payload, end = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from error
    _check_depth(payload)
    _check_unicode(text[:end], payload)
    return payload, text[end:]


def as_call(payload: Any, arguments_keys: tuple[str, ...]) -> ToolCall:
    """The call in an object with a name and, under the first of `arguments_keys` that it has, an arguments object.

    Raises:
        CallError: A part is missing or of the wrong kind.
    """
    if not isinstance(payload, dict):
        raise CallError(f"The tool call must be a JSON object, got {_kind(payload)}.")
    if "name" not in payload:
        raise CallError('The tool call has no "name".')
    name = payload["name"]
    if not isinstance(name, str) or not name:
        raise CallError(f'"name" must be a tool\'s name, got {_kind(name)}.')
    key = next((key for key in arguments_keys if key in payload), None)
    if key is None:
        raise CallError(f'The tool call has no "{arguments_keys[0]}" object.')
    arguments = payload[key]
    if not isinstance(arguments, dict):
        raise CallError(f'"{key}" must be a JSON object, got {_kind(arguments)}.')
    return ToolCall(name=name, arguments=arguments)


def _not_json(error: ValueError | RecursionError) -> CallError:
    if isinstance(error, json.JSONDecodeError):
        return CallError(f"The tool call is not valid JSON: {error.msg} at position {error.pos}.")
    if isinstance(error, RecursionError):
        return _too_deep()
    # Python refuses to convert integers of more than 4300 digits
    return CallError("The tool call is not valid JSON: a number in it is too long.")


def _refuse_constant(name: str) -> None:
    raise CallError(f"The tool call is not valid JSON: {name} is not a JSON number.")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):  # 1e999: no record and no server could write it as JSON again
        raise CallError("The tool call is not valid JSON: a number in it is too large.")
    return value


def _check_depth(payload: object) -> None:
    level = [payload]
    for _ in range(MAX_DEPTH):
        containers = (list(one.values()) if isinstance(one, dict) else one for one in level)
        level = [item for one in containers if isinstance(one, list) for item in one]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> CallError:
    return CallError(f"The tool call is nested too deeply: more than {MAX_DEPTH} levels.")


def _check_unicode(body: str, payload: Any) -> None:
    if re.search(r"\\u[dD][89a-fA-F]", body) and not _is_unicode(payload):
        raise CallError("The tool call is not valid JSON: it has half of a surrogate pair (\\ud800 to \\udfff).")


def _is_unicode(payload: object) -> bool:
    try:
        json.dumps(payload, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "null")


CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


class TaggedFormat(CallFormat):
    """A format that writes each call between `<tool_call>` tags; see `CallFormat`. A subclass renders and reads one."""

    example: ClassVar[str]
    """A call as a model should write it; error messages show it."""

    def __init__(self, config: None = None) -> None:
        """The format has no options."""

    @abstractmethod
    def read(self, body: str, schemas: Schemas) -> ToolCall:
        """The call in `body`, which is the text between the tags without leading and trailing whitespace.

        Raises:
            CallError: `body` is not a call in this format.
        """

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """See `CallFormat.find`."""
        opened = spoken.count(CALL_OPEN)
        if opened > 1:
            raise CallError(f"{opened} tool calls found. Make exactly one tool call per turn.")
        return self.find_all(spoken, schemas)[0]

    def find_all(self, spoken: str, schemas: Schemas) -> tuple[ToolCall, ...]:
        """See `CallFormat.find_all`."""
        bodies: list[str] = []
        for piece in spoken.split(CALL_OPEN)[1:]:
            body, closing, _ = piece.partition(CALL_CLOSE)
            if not closing:
                raise CallError(f"The tool call is not closed: {CALL_CLOSE} is missing.")
            bodies.append(body.strip())
        if not bodies:
            raise NoCallError(f"No tool call found. Call one tool like this:\n{self.example}")
        return tuple(self.read(body, schemas) for body in bodies)

    def words(self, spoken: str) -> str:
        """See `CallFormat.words`."""
        return spoken.partition(CALL_OPEN)[0].rstrip()


class HermesFormat(TaggedFormat):
    """JSON between the tags."""

    separator = "\n"
    jinja = (
        '{{- \'<tool_call>\\n{"name": "\' + name + \'", "arguments": \' '
        "+ (arguments | tojson) + '}\\n</tool_call>' }}"
    )
    example = f'{CALL_OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CALL_CLOSE}'

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        body = f'{{"name": "{call.name}", "arguments": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'
        return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"

    def read(self, body: str, schemas: Schemas) -> ToolCall:
        """See `TaggedFormat.read`."""
        if not body:
            raise CallError(f"The tool call is empty. Write JSON inside it:\n{self.example}")
        return as_call(load_json(body), ("arguments",))


_PYTHON_TAG = "<|python_tag|>"
LLAMA3_EXAMPLE = '{"name": "<tool>", "parameters": {...}}'


class Llama3JsonFormat(CallFormat):
    """See `CallFormat`. The first `{` of a turn begins the call; text may precede and follow it.

    One call a turn: the chat templates of this family refuse to render several.
    """

    separator = "\n"
    jinja = "{{- '{\"name\": \"' + name + '\", \"parameters\": ' + (arguments | tojson) + '}' }}"

    def __init__(self, config: None = None) -> None:
        """The format has no options."""

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        return f'{{"name": "{call.name}", "parameters": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """See `CallFormat.find`."""
        _, opening, rest = spoken.partition("{")
        if not opening:
            raise NoCallError(f"No tool call found. Call one tool like this:\n{LLAMA3_EXAMPLE}")
        payload, after = load_leading_json(opening + rest)
        if after.lstrip(" \n\r\t;,").startswith("{"):
            raise CallError("Several tool calls found. Make exactly one tool call per turn.")
        return as_call(payload, ("parameters", "arguments"))

    def words(self, spoken: str) -> str:
        """See `CallFormat.words`."""
        return spoken.partition("{")[0].rstrip().removesuffix(_PYTHON_TAG).rstrip()
