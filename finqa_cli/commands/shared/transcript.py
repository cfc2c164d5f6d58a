"""An episode as a person reads it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from finqa_cli.types import Task, Trajectory, Turn

WIDTH = 100
LONGEST_REPLY = 1200


def opening(task: Task) -> str:
    """The question and where it comes from."""
    about = ", ".join(part for part in (task.cluster, task.kind, f"{task.split} split") if part)
    return "\n".join([f"Question {task.id} ({about})", _block(task.prompt, "  ")])


def one_turn(number: int, turn: Turn) -> str:
    """What the policy did and what came back."""
    if turn.tool_call is None and not turn.parse_error:  # an environment without tools takes the text itself
        return "\n".join([f"{number}. {_block(_cut(turn.text.strip()), '   ').lstrip()}", *_reply(turn)])
    return "\n".join([f"{number}. {_action(turn)}", *_reply(turn)])


def verdict(trajectory: Trajectory) -> str:
    """Status, reward and why."""
    if trajectory.rewards is None:
        return f"Not graded: {trajectory.status.value}. {trajectory.error}"
    reason = trajectory.rewards.explanation or trajectory.error
    ended = "" if trajectory.status == "completed" else f" The episode ended with {trajectory.status.value}."
    return f"Reward {trajectory.rewards.total:g}: {reason}.{ended}".replace("..", ".")


def _action(turn: Turn) -> str:
    if turn.tool_call is None:
        return f"(no tool call) {turn.text.strip()[:200]}"
    arguments = ", ".join(f"{name}={_value(value)}" for name, value in turn.tool_call.arguments.items())
    return f"{turn.tool_call.name}({arguments})"


def _value(value: object) -> str:
    return value if isinstance(value, str) and "\n" not in value and len(value) < 400 else json.dumps(value)


def _reply(turn: Turn) -> Iterator[str]:
    if turn.observation is None:
        return
    yield _block(_cut(turn.observation.text), "   > ")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REPLY else f"{text[:LONGEST_REPLY]} ... ({len(text)} characters)"


def _block(text: str, indent: str) -> str:
    lines = text.splitlines() or [""]
    return "\n".join(
        textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for line in lines
    )
