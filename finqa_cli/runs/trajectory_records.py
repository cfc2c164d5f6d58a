"""Trajectories as JSON records, and back as demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A graded conversation to imitate.

    Attributes:
        id: The trajectory's.
        prompt: How it opened.
        messages: Assistant and tool messages in turn.
        cluster: The task's cluster, so that held-out demonstrations can be held out by cluster.
        reward: Its total reward.
    """

    id: str
    prompt: Prompt
    messages: tuple[Message, ...]
    cluster: str
    reward: float


def trajectory_record(trajectory: Trajectory, *, token_ids: bool = False) -> dict[str, Any]:
    """One line of trajectories.jsonl. Token ids and log-probabilities are left out unless asked for: they are large."""
    task, rewards = trajectory.task, trajectory.rewards
    return {
        "id": trajectory.id,
        "task": {"id": task.id, "split": task.split, "cluster": task.cluster, "kind": task.kind, "prompt": task.prompt},
        "member": trajectory.member,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "error": trajectory.error,
        "reward": trajectory.reward,
        "components": dict(rewards.components) if rewards else {},
        "explanation": rewards.explanation if rewards else "",
        **({"weight": rewards.weight} if rewards and rewards.weight != 1.0 else {}),  # absent from nearly every record
        "retries": trajectory.retries,
        "recoveries": trajectory.recoveries,
        "seconds": round(trajectory.seconds, 4),
        "metadata": dict(trajectory.metadata),
        "messages": [{"role": message.role, "content": message.content} for message in trajectory.messages],
        "tools": [tool.as_function() for tool in trajectory.tools],
        "turns": [_turn_record(turn, token_ids) for turn in trajectory.turns],
    }


def demonstrations_file(source: Path) -> Path:
    """The trajectories of a run folder, or the file itself.

    Raises:
        DataError: There is no such file.
    """
    path = source / "trajectories.jsonl" if source.is_dir() else source
    if not path.is_file():
        raise DataError(
            f"There are no demonstrations at {path}.", remedy="finqa eval scripted --split train --run-dir DIR"
        )
    return path


def dealt_order(record: Mapping[str, Any]) -> tuple[int, str, int, str]:
    """Sorts the attempts of a run by iteration, task and member.

    A file has them as they ended, which depends on timing; what is trained on them must not.

    Raises:
        KeyError, TypeError, ValueError: It is no record of an attempt.
    """
    iteration, member = int(record.get("iteration", 0)), int(record.get("member", 0))
    return iteration, str(record["task"]["id"]), member, str(record["id"])


def read_demonstrations(source: Path) -> list[Demonstration]:
    """Demonstrations from a run folder or a trajectories file, in `dealt_order`; faulted attempts are left out.

    Raises:
        DataError: The file is missing, or a record lacks a field; the message names file, row and field.
    """
    path = demonstrations_file(source)
    # The evaluations inside a training run ask held-out questions; imitating them would teach the test.
    phases = {"train"} if _command(path.parent) == "train" else {"train", "eval"}
    found: list[tuple[tuple[int, str, int, str], Demonstration]] = []
    for row, record in enumerate(read_jsonl(path), start=1):
        try:
            if record["reward"] is not None and record.get("phase", "eval") in phases:
                found.append((dealt_order(record), _demonstration(record)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, row {row}: not a trajectory record ({error!r}).") from error
    return [demonstration for _, demonstration in sorted(found, key=itemgetter(0))]


def _command(run: Path) -> str:
    try:
        return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # a trajectories file outside a run


def _turn_record(turn: Turn, token_ids: bool) -> dict[str, Any]:
    call, observation = turn.tool_call, turn.observation
    record: dict[str, Any] = {
        "text": turn.text,
        "tool_call": {"name": call.name, "arguments": dict(call.arguments)} if call else None,
        "parse_error": turn.parse_error,
        "observation": None
        if observation is None
        else {"text": observation.text, "done": observation.done, "is_error": observation.is_error},
        "stop": turn.stop,
        "policy_version": turn.policy_version,
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": len(turn.completion_ids),
        "seconds": round(turn.seconds, 4),
    }
    if turn.words:
        record["words"] = turn.words
    if turn.restarts:  # absent from nearly every record
        record["restarts"] = True
    if token_ids:
        record |= {
            "prompt_token_ids": list(turn.prompt_ids),
            "completion_token_ids": list(turn.completion_ids),
            "logprobs": list(turn.logprobs),
        }
    return record


def _demonstration(record: Mapping[str, Any]) -> Demonstration:
    return Demonstration(
        id=record["id"],
        prompt=recorded_prompt(record),
        messages=tuple(message for turn in record["turns"] for message in exchange(turn)),
        cluster=record["task"]["cluster"],
        reward=record["reward"],
    )


def recorded_prompt(record: Mapping[str, Any]) -> Prompt:
    """How a recorded attempt opened.

    Raises:
        KeyError, TypeError, AttributeError: It is no record of an attempt.
    """
    tools = (tool["function"] for tool in record["tools"])
    return Prompt(
        messages=tuple(Message(role=item["role"], content=item["content"]) for item in record["messages"]),
        tools=tuple(
            ToolSpec(name=item["name"], description=item["description"], parameters=item["parameters"])
            for item in tools
        ),
    )


def exchange(turn: Mapping[str, Any]) -> Iterator[Message]:
    """The assistant message of a recorded turn, and the message of tool or user that answered it, if one did."""
    call, observation = turn["tool_call"], turn["observation"]
    tool_call = ToolCall(name=call["name"], arguments=call["arguments"]) if call else None
    # The codec of the model that learns renders the call itself; records of earlier versions have no words beside it.
    yield Message(role="assistant", content=turn.get("words", "") if tool_call else turn["text"], tool_call=tool_call)
    if observation is None:
        return
    if tool_call is None and not turn["parse_error"]:  # an episode of texts, which the environment answers as the user
        yield Message(role="user", content=observation["text"])
    else:
        yield Message(role="tool", content=observation["text"], name=tool_call.name if tool_call else "")
