"""Recorded conversations as the rows that other libraries read. Pure.

TRL's conversational data sets (huggingface.co/docs/trl/dataset_formats), OpenAI's fine-tuning messages
(platform.openai.com/docs/guides/supervised-fine-tuning), where arguments of calls are text and every reply of a tool
names its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from finqa_cli.runs.trajectory_records import Pair
from finqa_cli.types import Message, Prompt, ToolSpec

Row = dict[str, Any]


def trl_sft_row(prompt: Prompt, answer: Sequence[Message]) -> Row:
    """`prompt` and `completion` as messages, and `tools` where there are any."""
    return {
        "prompt": list(_trl(prompt.messages, prompt)),
        "completion": list(_trl(_up_to_assistant(answer), prompt)),
        **_tools(prompt.tools),
    }


def trl_preference_row(pair: Pair) -> Row:
    """`prompt`, `chosen` and `rejected` as messages, and `tools` where there are any."""
    return {
        "prompt": list(_trl(pair.prompt.messages, pair.prompt)),
        "chosen": list(_trl(_up_to_assistant(pair.chosen.messages), pair.prompt)),
        "rejected": list(_trl(_up_to_assistant(pair.rejected.messages), pair.prompt)),
        **_tools(pair.prompt.tools),
    }


def openai_row(prompt: Prompt, answer: Sequence[Message]) -> Row:
    """`messages` that end with the assistant's, and `tools` where there are any."""
    return {"messages": openai_messages(prompt, _up_to_assistant(answer)), **_tools(prompt.tools)}


def openai_messages(prompt: Prompt, answer: Sequence[Message]) -> list[Row]:
    """Calls have ids, `call_0` and so on, which the replies name. What answers a turn without a call, such as one whose
    call could not be read, is the user's: a reply of a tool must name a call.
    """
    rows: list[Row] = []
    call, calls = "", 0
    for message in (*prompt.messages, *answer):
        if message.role == "tool" and call:
            rows.append({"role": "tool", "tool_call_id": call, "content": message.content})
            call = ""
        elif message.tool_call is not None:
            call, calls = f"call_{calls}", calls + 1
            arguments = json.dumps(dict(message.tool_call.arguments), ensure_ascii=False)
            function = {"name": message.tool_call.name, "arguments": arguments}
            tool_calls = [{"id": call, "type": "function", "function": function}]
            rows.append({"role": "assistant", "content": message.content or None, "tool_calls": tool_calls})
        else:
            role = "user" if message.role == "tool" else message.role
            rows.append({"role": role, "content": message.content})
    return rows


def _trl(messages: Sequence[Message], prompt: Prompt) -> Iterator[Row]:
    """As chat templates take them: arguments are objects; without tools, who answers is the user."""
    for message in messages:
        role = "user" if message.role == "tool" and not prompt.tools else message.role
        row: Row = {"role": role, "content": message.content}
        if message.tool_call is not None:
            function = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
            row["tool_calls"] = [{"type": "function", "function": function}]
        if role == "tool" and message.name:
            row["name"] = message.name
        yield row


def _up_to_assistant(answer: Sequence[Message]) -> Sequence[Message]:
    """Without what came after the last turn of the assistant: there is nothing to learn from it."""
    end = max((place for place, message in enumerate(answer) if message.role == "assistant"), default=-1)
    return answer[: end + 1]


def _tools(tools: Sequence[ToolSpec]) -> Row:
    return {"tools": [tool.as_function() for tool in tools]} if tools else {}
