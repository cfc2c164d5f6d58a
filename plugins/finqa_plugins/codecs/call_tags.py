"""The `<tool_call>` tags that several formats put around a call. Pure text."""

from __future__ import annotations

from finqa_cli.contracts import CallError

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


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


def words_before(spoken: str) -> str:
    """What stands before the tags."""
    return spoken.partition(CALL_OPEN)[0].rstrip()
