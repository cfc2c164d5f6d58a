"""Finds the tool call in what a model wrote, and the `hermes` format. Pure text; every input gives a turn."""

from __future__ import annotations

import json

from finqa_cli.types import AssistantTurn, ToolCall
from finqa_plugins.chat_codecs.call_format import CallFormat, Schemas
from finqa_plugins.chat_codecs.call_json import CallError, as_call, load_json

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
EXAMPLE = f'{CALL_OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CALL_CLOSE}'


class HermesFormat:
    """JSON between `<tool_call>` tags: Qwen2.5, Qwen3 and the embedded policy."""

    separator = "\n"

    def render(self, call: ToolCall) -> str:
        """See `CallFormat.render`."""
        return render_call(call)

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """See `CallFormat.find`."""
        body = tagged_call(spoken, EXAMPLE)
        if not body:
            raise CallError(f"The tool call is empty. Write JSON inside it:\n{EXAMPLE}")
        return as_call(load_json(body), ("arguments",))


_HERMES = HermesFormat()


def parse_turn(
    text: str, form: CallFormat = _HERMES, schemas: Schemas | None = None, *, reasoning: bool = False
) -> AssistantTurn:
    """Parses an assistant turn; `text` is free of stop tokens.

    Exactly one call a turn is accepted, because an episode answers one call at a time: playing only the first of
    several would leave the model with calls whose replies never come. Calls inside a reasoning block do not count.

    Args:
        text: What was sampled.
        form: How its family writes calls.
        schemas: See `CallFormat.find`.
        reasoning: The turn starts inside a reasoning block, which the prompt has opened.
    """
    _, closing, spoken = text.rpartition(THINK_CLOSE)
    try:
        if spoken.lstrip().startswith(THINK_OPEN) or (reasoning and not closing):
            raise CallError(f"The reasoning is not closed: {THINK_CLOSE} is missing.")
        return AssistantTurn(text=text, tool_call=form.find(spoken, schemas or {}))
    except CallError as error:
        return AssistantTurn(text=text, parse_error=str(error))


def render_call(call: ToolCall) -> str:
    """The call as Qwen's chat template writes it (without control-token care: see `shielding`)."""
    body = f'{{"name": "{call.name}", "arguments": {json.dumps(dict(call.arguments), ensure_ascii=False)}}}'
    return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"


def tagged_call(spoken: str, example: str) -> str:
    """What stands between the one pair of `<tool_call>` tags, stripped.

    Raises:
        CallError: There is no pair, more than one, or one that is not closed.
    """
    opened = spoken.count(CALL_OPEN)
    if opened == 0:
        raise CallError(f"No tool call found. Call one tool like this:\n{example}")
    if opened > 1:
        raise CallError(f"{opened} tool calls found. Make exactly one tool call per turn.")
    body, closing, _ = spoken.partition(CALL_OPEN)[2].partition(CALL_CLOSE)
    if not closing:
        raise CallError(f"The tool call is not closed: {CALL_CLOSE} is missing.")
    return body.strip()
