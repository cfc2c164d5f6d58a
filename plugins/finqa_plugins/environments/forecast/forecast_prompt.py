"""How an episode opens."""

from __future__ import annotations

from dataclasses import replace

from finqa_cli.types import Message, Prompt
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_rows import Row
from finqa_plugins.environments.forecast.sections import reduced

ANSWER = "Answer the question about a share. End with the answer alone between tags: <answer>...</answer>"
CONFIDENCE = "Behind it say how sure you are that it is right, from 0 to 1: <confidence>...</confidence>"


def opening(row: Row, config: ForecastConfig) -> Prompt:
    """The row's messages with the sections that are wanted, and what they do not ask for themselves; no tools."""
    messages = [
        replace(message, content=reduced(message.content, config.inputs)) if message.role == "user" else message
        for message in row.messages
    ]
    said = " ".join(message.content for message in messages)
    asked = [ANSWER] if "<answer>" not in said else []
    asked += [CONFIDENCE] if config.asks_confidence and "<confidence>" not in said else []
    if asked and messages[0].role == "system":
        messages[0] = replace(messages[0], content="\n".join((messages[0].content, *asked)))
    elif asked:
        messages.insert(0, Message(role="system", content="\n".join(asked)))
    return Prompt(messages=tuple(messages), tools=())
