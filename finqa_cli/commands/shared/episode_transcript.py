"""An episode as a readable transcript, while it is played and from its record.

Texts of policies and environments are not trusted: nothing in them reaches the terminal as a control character.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from finqa_cli.commands.shared.output import screen_width
from finqa_cli.errors import printable
from finqa_cli.types import Observation, Task, ToolCall, Trajectory, Turn

WIDTH = 100
LONGEST_REPLY = 1200


def opening_text(task: Task) -> str:
    """Return the question and where it comes from."""
    about = ", ".join(part for part in (task.cluster, task.kind, f"{task.split} split") if part)
    return printable("\n".join([f"Question {task.id} ({about})", _block(task.prompt, "  ")]))


def turn_text(number: int, turn: Turn) -> str:
    """Return what the policy did and what came back."""
    return printable("\n".join(_lines(number, turn)))


def verdict_text(trajectory: Trajectory) -> str:
    """Return the status, the reward and its reason, or where none is given the parts of the reward."""
    if trajectory.rewards is None:
        return printable(f"Not graded: {trajectory.status.value}. {trajectory.error}")
    parts = ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.components.items())
    reason = trajectory.rewards.explanation or trajectory.error or parts
    ended = "" if trajectory.status == "completed" else f" The episode ended with {trajectory.status.value}."
    text = f"Reward {trajectory.rewards.total:g}{f': {reason}' if reason else ''}.{ended}"
    return printable(text.replace("..", "."))


def truth_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the right answer in a record, and how both answers are read if that adds information."""
    if not (truth := record.get("truth", "")):
        return []
    values = record["values"]
    lines = [f"Right answer: {truth}"] if "\n" not in truth else ["Right answer:", _block(_cut(truth), "  ")]
    if values["truth"] and values["truth"].replace(",", "") != truth.replace(",", ""):
        lines.append(f"As numbers: {values['truth']}; the answer: {values['answer'] or 'none'}")
    return [printable(line) for line in lines]


def _lines(number: int, turn: Turn) -> Iterator[str]:
    if turn.tool_call is None and not turn.parse_error:  # an environment without tools takes the text itself
        yield f"{number}. {_block(_cut(turn.text.strip()), '   ').lstrip()}"
        yield from _reply(turn.observation)
    elif not turn.steps:
        yield f"{number}. (no tool call) {turn.text.strip()[:200]}"
        yield from _reply(turn.observation)
    for place, step in enumerate(turn.steps):
        start = f"{number}. " if place == 0 else " " * len(f"{number}. ")
        yield f"{start}{action_text(step.call)}"
        yield from _reply(step.observation)


def action_text(call: ToolCall) -> str:
    """Return a call as it is written in a transcript."""
    arguments = ", ".join(f"{name}={_value(value)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"


def _value(value: object) -> str:
    return value if isinstance(value, str) and "\n" not in value and len(value) < 400 else json.dumps(value)


def _reply(observation: Observation | None) -> Iterator[str]:
    if observation is not None:
        images = [f"[{len(observation.images)} image{'s' * (len(observation.images) > 1)}]"] * bool(observation.images)
        yield _block("\n".join([_cut(observation.text), *images]), "   > ")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REPLY else f"{text[:LONGEST_REPLY]} ... ({len(text)} characters)"


def _block(text: str, indent: str) -> str:
    lines = text.splitlines() or [""]
    width = min(screen_width() or WIDTH, WIDTH)
    return "\n".join(
        textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for line in lines
    )
