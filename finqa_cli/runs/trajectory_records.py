"""JSON records of trajectories, and reading them as trajectories, demonstrations or preference pairs (pairs.jsonl)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.runs.jsonl import SCHEMA_VERSION, read_jsonl
from finqa_cli.types import (
    Message,
    Observation,
    Prompt,
    Rewards,
    Role,
    Status,
    Step,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)

PAIRS = "pairs.jsonl"

_MALFORMED = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
_REMEDY = "finqa prefs RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A graded conversation to imitate.

    Attributes:
        id: Id of the trajectory.
        prompt: The opening of the conversation.
        messages: Assistant messages and replies in their order.
        cluster: Cluster of the task; demonstrations are held out by cluster.
        reward: Total reward.
    """

    id: str
    prompt: Prompt
    messages: tuple[Message, ...]
    cluster: str
    reward: float


def trajectory_record(trajectory: Trajectory, *, token_ids: bool = False) -> dict[str, Any]:
    """Return the fields of one line of trajectories.jsonl; token ids and log-probabilities only with `token_ids`."""
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
        "messages": [
            {"role": message.role, "content": message.content, **_images_record(message.images)}
            for message in trajectory.messages
        ],
        "tools": [tool.as_function() for tool in trajectory.tools],
        **({"several_calls": True} if trajectory.several_calls else {}),
        "turns": [_turn_record(turn, token_ids) for turn in trajectory.turns],
    }


def trajectory_text(trajectory: Trajectory, *, token_ids: bool = False) -> bytes:
    """Return `trajectory_record` as a JSON object in ASCII.

    Raises:
        ValueError: A number is not finite.
    """
    record = trajectory_record(trajectory, token_ids=token_ids)
    return json.dumps(record, ensure_ascii=True, allow_nan=False).encode()


def demonstrations_file(source: Path) -> Path:
    """Return the trajectories file of a run folder, or `source` itself if it is not a folder.

    Raises:
        DataError: There is no such file.
    """
    path = source / "trajectories.jsonl" if source.is_dir() else source
    if not path.is_file():
        raise DataError(
            f"There are no demonstrations at {path}.", remedy="finqa eval scripted --split train --run-dir DIR"
        )
    return path


def has_graded(run: Path) -> bool:
    """Whether a run recorded an attempt that was graded.

    Raises:
        DataError: A line before the first such record is damaged.
    """
    file = run / "trajectories.jsonl"
    return file.is_file() and any(record.get("reward") is not None for record in read_jsonl(file))


def record_order(record: Mapping[str, Any]) -> tuple[int, str, int, str]:
    """Sort key of attempts: iteration, task, member and id.

    A file has the attempts in the order in which they ended, which depends on timing. Training data must not.

    Raises:
        KeyError, TypeError, ValueError: It is not the record of an attempt.
    """
    iteration, member = int(record.get("iteration", 0)), int(record.get("member", 0))
    return iteration, str(record["task"]["id"]), member, str(record["id"])


def read_demonstrations(source: Path) -> list[Demonstration]:
    """Read demonstrations from a run folder or a trajectories file, in `record_order`, without ungraded attempts.

    Raises:
        DataError: The file is missing, or a record lacks a field; the message names file, row and field.
    """
    path = demonstrations_file(source)
    # Evaluations during a training run use held-out questions; imitating them would train on test data.
    phases = {"train"} if _command(path.parent) == "train" else {"train", "eval"}
    found: list[tuple[tuple[int, str, int, str], Demonstration]] = []
    for row, record in enumerate(read_jsonl(path), start=1):
        try:
            if record["reward"] is not None and record.get("phase", "eval") in phases:
                found.append((record_order(record), _demonstration(record)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, row {row}: not a trajectory record ({error!r}).") from error
    return [demonstration for _, demonstration in sorted(found, key=itemgetter(0))]


def _command(run: Path) -> str:
    try:
        return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # a trajectories file outside a run


def _turn_record(turn: Turn, token_ids: bool) -> dict[str, Any]:
    known = bool(turn.prompt_ids or turn.completion_ids)  # else the attempt's `usage` has the figures of the server
    record: dict[str, Any] = {
        "text": turn.text,
        "tool_call": _call_record(turn.tool_call),
        "parse_error": turn.parse_error,
        "observation": _observation_record(turn.observation),
        "stop": turn.stop,
        "policy_version": turn.policy_version,
        "prompt_tokens": len(turn.prompt_ids) if known else None,
        "completion_tokens": len(turn.completion_ids) if known else None,
        "seconds": round(turn.seconds, 4),
    }
    if turn.words:
        record["words"] = turn.words
    if turn.further_steps:
        record["further_steps"] = [
            {"tool_call": _call_record(step.call), "observation": _observation_record(step.observation)}
            for step in turn.further_steps
        ]
    if turn.restarts:  # absent from nearly every record
        record["restarts"] = True
    if token_ids:
        record |= {
            "prompt_token_ids": list(turn.prompt_ids),
            "completion_token_ids": list(turn.completion_ids),
            "logprobs": list(turn.logprobs),
        }
    return record


def _call_record(call: ToolCall | None) -> dict[str, Any] | None:
    return None if call is None else {"name": call.name, "arguments": dict(call.arguments)}


def _observation_record(observation: Observation | None) -> dict[str, Any] | None:
    if observation is None:
        return None
    seen = _images_record(observation.images)
    return {"text": observation.text, "done": observation.done, "is_error": observation.is_error, **seen}


def _images_record(images: Sequence[str]) -> dict[str, Any]:
    return {"images": list(images)} if images else {}


def recorded_steps(turn: Mapping[str, Any]) -> tuple[Step, ...]:
    """All calls of a recorded turn with their replies; empty if no call could be parsed.

    Raises:
        KeyError, TypeError: It is not the record of a turn.
    """
    if turn["tool_call"] is None:
        return ()
    return tuple(
        Step(
            call=ToolCall(name=step["tool_call"]["name"], arguments=step["tool_call"]["arguments"]),
            observation=recorded_observation(step),
        )
        for step in (turn, *turn.get("further_steps", ()))
    )


def recorded_observation(step: Mapping[str, Any]) -> Observation | None:
    """The reply in the record of a turn or of one of its steps; None if there was none.

    Raises:
        KeyError, TypeError: It is not such a record.
    """
    answer = step["observation"]
    if answer is None:
        return None
    images = tuple(answer.get("images", ()))
    return Observation(text=answer["text"], done=answer["done"], is_error=answer["is_error"], images=images)


def recorded_trajectory(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory in a record, without token ids and log-probabilities.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not the record of an attempt.
    """
    rewards = None
    if record["reward"] is not None:
        rewards = Rewards(
            total=float(record["reward"]),
            components={str(name): float(value) for name, value in record["components"].items()},
            explanation=str(record.get("explanation", "")),
            weight=float(record.get("weight", 1.0)),
        )
    prompt = recorded_prompt(record)
    return Trajectory(
        id=str(record["id"]),
        messages=prompt.messages,
        tools=prompt.tools,
        several_calls=prompt.several_calls,
        task=Task(**{name: str(record["task"][name]) for name in ("id", "prompt", "split", "cluster", "kind")}),
        member=int(record["member"]),
        seed=int(record["seed"]),
        status=Status(record["status"]),
        turns=tuple(map(_recorded_turn, record["turns"])),
        rewards=rewards,
        error=str(record["error"]),
        retries=int(record.get("retries", 0)),
        recoveries=int(record.get("recoveries", 0)),
        seconds=float(record.get("seconds", 0.0)),
        metadata=dict(record["metadata"]),
    )


def _recorded_turn(record: Mapping[str, Any]) -> Turn:
    first, *further = recorded_steps(record) or (None,)
    return Turn(
        text=str(record["text"]),
        stop=str(record["stop"]),
        parse_error=str(record["parse_error"]),
        policy_version=int(record["policy_version"]),
        seconds=float(record["seconds"]),
        tool_call=first.call if first else None,
        observation=recorded_observation(record),
        further_steps=tuple(step for step in further if step is not None),
    )


def _demonstration(record: Mapping[str, Any]) -> Demonstration:
    return Demonstration(
        id=record["id"],
        prompt=recorded_prompt(record),
        messages=tuple(message for turn in record["turns"] for message in exchange(turn)),
        cluster=record["task"]["cluster"],
        reward=record["reward"],
    )


def recorded_prompt(record: Mapping[str, Any]) -> Prompt:
    """The opening prompt of a recorded attempt.

    Raises:
        KeyError, TypeError, AttributeError: It is not the record of an attempt.
    """
    tools = (tool["function"] for tool in record["tools"])
    return Prompt(
        messages=tuple(
            Message(role=item["role"], content=item["content"], images=tuple(item.get("images", ())))
            for item in record["messages"]
        ),
        tools=tuple(
            ToolSpec(name=item["name"], description=item["description"], parameters=item["parameters"])
            for item in tools
        ),
        several_calls=record.get("several_calls", False),
    )


def exchange(turn: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the assistant message of a recorded turn, and the tool or user messages that reply to it, if any."""
    if steps := recorded_steps(turn):
        first, *further = (step.call for step in steps)
        # The codec of the trained model renders calls itself. Records of earlier versions have no `words`.
        words = turn.get("words", "")
        yield Message(role="assistant", content=words, tool_call=first, further_calls=tuple(further))
        for step in steps:
            if step.observation is not None:
                reply = step.observation
                yield Message(role="tool", content=reply.text, name=step.call.name, images=reply.images)
        return
    yield Message(role="assistant", content=turn["text"])
    if (observation := recorded_observation(turn)) is None:
        return
    # In an episode of texts, the environment replies as the user.
    role: Role = "tool" if turn["parse_error"] else "user"
    yield Message(role=role, content=observation.text, images=observation.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two attempts of a pair.

    Attributes:
        attempt: Id of the attempt in its run.
        text: All text that the policy generated, with its calls, as JSON.
        messages: Assistant messages and replies in their order.
        turns: Ids and log-probabilities of each turn; empty if they were not recorded.
        reward: Total reward; None if the preferences do not come from rewards.
    """

    attempt: str
    text: str
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference pair.

    Attributes:
        id: Unique in its file.
        cluster: Cluster of the task.
        held_out: It is for evaluation, not for training.
        prompt: The opening of both attempts.
        chosen: The preferred attempt.
        rejected: The other attempt.
    """

    id: str
    cluster: str
    held_out: bool
    prompt: Prompt
    chosen: Side
    rejected: Side


def pairs_file(source: Path) -> Path:
    """Return the pairs file in a folder of `finqa prefs`, or `source` itself if it is not a folder.

    Raises:
        DataError: There is no such file.
    """
    path = source / PAIRS if source.is_dir() else source
    if not path.is_file():
        raise DataError(f"There are no preference pairs at {path}.", remedy=_REMEDY)
    return path


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file, after checking each of them.

    Raises:
        DataError: A row is malformed or of another file version, repeats an id, has a chosen attempt without a higher
            reward, or has two equal texts. The message names file and row.
    """
    seen: set[str] = set()
    for row, record in enumerate(read_jsonl(path), start=1):
        place = f"{path}, row {row}"
        if record.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            version = record["schema_version"]
            raise DataError(
                f"{place}: written in file version {version!r}; this finqa reads {SCHEMA_VERSION}.", remedy=_REMEDY
            )
        try:
            pair = _pair(record)
        except _MALFORMED as error:
            raise DataError(f"{place}: not a preference pair ({error!r}).", remedy=_REMEDY) from error
        if wrong := _wrong(pair, seen):
            raise DataError(f"{place} ({pair.id}): {wrong}.", remedy=f"remove the row, or {_REMEDY}")
        seen.add(pair.id)
        yield pair


def _wrong(pair: Pair, seen: set[str]) -> str:
    if pair.id in seen:
        return "the id is that of an earlier row"
    if pair.chosen.text == pair.rejected.text:
        return "chosen and rejected are the same text"
    better, worse = pair.chosen.reward, pair.rejected.reward
    if better is not None and worse is not None and not better > worse:
        return f"chosen earned {better:g} and rejected {worse:g}, so the margin is not above 0"
    return ""


def _pair(record: Mapping[str, Any]) -> Pair:
    prompt = recorded_prompt(record["prompt"])
    if not prompt.messages:
        raise ValueError("the prompt has no message")
    return Pair(
        id=str(record["id"]),
        cluster=str(record["task"]["cluster"]),
        held_out=bool(record["held_out"]),
        prompt=prompt,
        chosen=_side(record["chosen"]),
        rejected=_side(record["rejected"]),
    )


def _side(side: Mapping[str, Any]) -> Side:
    turns = side["turns"]
    if not turns:
        raise ValueError("an attempt has no turn")
    said = [json.dumps([turn["text"], turn["tool_call"]], sort_keys=True) for turn in turns]
    reward = None if side.get("reward") is None else float(side["reward"])
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"the reward {reward} is not a finite number")
    recorded = all(turn.get("completion_token_ids") for turn in turns)
    return Side(
        attempt=str(side.get("attempt", "")),
        text="\n".join(said),
        messages=tuple(message for turn in turns for message in exchange(turn)),
        turns=tuple(map(_turn, turns)) if recorded else (),
        reward=reward,
    )


def _turn(turn: Mapping[str, Any]) -> Turn:
    return Turn(
        prompt_ids=tuple(map(int, turn["prompt_token_ids"])),
        completion_ids=tuple(map(int, turn["completion_token_ids"])),
        logprobs=tuple(map(float, turn["logprobs"])),
        restarts=bool(turn.get("restarts", False)),
        stop=str(turn["stop"]),
    )
