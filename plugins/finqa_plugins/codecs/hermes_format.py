"""The `hermes` format: JSON between `<tool_call>` tags, as Qwen2.5, Qwen3 and the embedded policy write calls."""

from __future__ import annotations

import json

from finqa_cli.contracts import CallError, Schemas
from finqa_cli.types import ToolCall
from finqa_plugins.codecs.call_json import as_call, load_json
from finqa_plugins.codecs.call_tags import CALL_CLOSE, CALL_OPEN, tagged_call, words_before

EXAMPLE = f'{CALL_OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CALL_CLOSE}'


class HermesFormat:
    """See `CallFormat`."""

    separator = "\n"

    def __init__(self, config: None = None) -> None:
        """It has no options."""

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        body = f'{{"name": "{call.name}", "arguments": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'
        return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """See `CallFormat.find`."""
        body = tagged_call(spoken, EXAMPLE)
        if not body:
            raise CallError(f"The tool call is empty. Write JSON inside it:\n{EXAMPLE}")
        return as_call(load_json(body), ("arguments",))

    def words(self, spoken: str) -> str:
        """See `CallFormat.words`."""
        return words_before(spoken)
