"""The `llama3_json` format: a bare JSON object with `name` and `parameters`, as Llama 3.1 to 3.3 write calls.

Source: the JSON tool calling of Llama 3.1's published prompt format; vLLM's parser of the same name takes `arguments`
for `parameters` as well, and skips `<|python_tag|>`.
"""

from __future__ import annotations

import json

from finqa_cli.contracts import CallError, Schemas
from finqa_cli.types import ToolCall
from finqa_plugins.codecs.call_json import as_call, load_leading_json

_PYTHON_TAG = "<|python_tag|>"
EXAMPLE = '{"name": "<tool>", "parameters": {...}}'


class Llama3JsonFormat:
    """See `CallFormat`. The first `{` of a turn begins the call; words may stand before and after it."""

    separator = "\n"

    def __init__(self, config: None = None) -> None:
        """It has no options."""

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        return f'{{"name": "{call.name}", "parameters": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """See `CallFormat.find`."""
        _, opening, rest = spoken.partition("{")
        if not opening:
            raise CallError(f"No tool call found. Call one tool like this:\n{EXAMPLE}")
        payload, after = load_leading_json(opening + rest)
        if after.lstrip(" \n\r\t;,").startswith("{"):
            raise CallError("Several tool calls found. Make exactly one tool call per turn.")
        return as_call(payload, ("parameters", "arguments"))

    def words(self, spoken: str) -> str:
        """See `CallFormat.words`."""
        return spoken.partition("{")[0].rstrip().removesuffix(_PYTHON_TAG).rstrip()
