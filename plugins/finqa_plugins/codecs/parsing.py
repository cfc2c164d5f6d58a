"""Finds the tool call in what a model wrote. Pure text; every input gives a turn."""

from __future__ import annotations

from finqa_cli.contracts import CallError, CallFormat, Schemas
from finqa_cli.types import AssistantTurn
from finqa_plugins.codecs.reasoning import THINK_CLOSE, THINK_OPEN


def parse_turn(text: str, form: CallFormat, schemas: Schemas, *, reasoning: bool = False) -> AssistantTurn:
    """Parses an assistant turn; `text` is free of stop tokens.

    Exactly one call a turn is accepted, because an episode answers one call at a time: playing only the first of
    several would leave the model with calls whose replies never come. Calls inside a reasoning block do not count.

    Args:
        text: What was sampled.
        form: How its family writes calls.
        schemas: See `CallFormat.find`.
        reasoning: The turn starts inside a reasoning block, which the prompt has opened.
    """
    thought, closing, spoken = text.rpartition(THINK_CLOSE)
    try:
        if spoken.lstrip().startswith(THINK_OPEN) or (reasoning and not closing):
            raise CallError(f"The reasoning is not closed: {THINK_CLOSE} is missing.")
        call = form.find(spoken, schemas)
    except CallError as error:
        return AssistantTurn(text=text, parse_error=str(error))
    opening = f"{THINK_OPEN}\n" if reasoning else ""
    return AssistantTurn(text=text, words=opening + thought + closing + form.words(spoken), tool_call=call)
