"""pairs.jsonl: two attempts at one question, one preferred to the other."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.runs.jsonl import SCHEMA_VERSION, read_jsonl
from finqa_cli.runs.trajectory_records import exchange
from finqa_cli.types import Message, Prompt, ToolSpec, Turn

PAIRS = "pairs.jsonl"

_MALFORMED = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
_REMEDY = "finqa prefs RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two attempts.

    Attributes:
        attempt: Its id in its run.
        text: All that the policy said.
        messages: Assistant and tool messages in turn.
        turns: Ids and log-probabilities of each turn; empty when they were not recorded.
        reward: Its total reward; None where preferences are not made of rewards.
    """

    attempt: str
    text: str
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference.

    Attributes:
        id: Unique in its file.
        cluster: The task's.
        held_out: For measuring, not for training.
        prompt: How both opened.
        chosen: The preferred one.
        rejected: The other.
    """

    id: str
    cluster: str
    held_out: bool
    prompt: Prompt
    chosen: Side
    rejected: Side


def pairs_file(source: Path) -> Path:
    """The file in a folder of `finqa prefs`, or the file itself.

    Raises:
        DataError: There is none.
    """
    path = source / PAIRS if source.is_dir() else source
    if not path.is_file():
        raise DataError(f"There are no preference pairs at {path}.", remedy=_REMEDY)
    return path


def read_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a file, each checked.

    Raises:
        DataError: A row is malformed, of another version, a repetition, prefers what earned less or the same, or its
            two texts are equal; the message names file and row.
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
            raise DataError(f"{place} ({pair.id}): {wrong}.", remedy=f"take the row out, or {_REMEDY}")
        seen.add(pair.id)
        yield pair


def _wrong(pair: Pair, seen: set[str]) -> str:
    if pair.id in seen:
        return "the id is that of an earlier row"
    if pair.chosen.text == pair.rejected.text:
        return "chosen and rejected say the same"
    better, worse = pair.chosen.reward, pair.rejected.reward
    if better is not None and worse is not None and not better > worse:
        return f"chosen earned {better:g} and rejected {worse:g}, so the margin is not above 0"
    return ""


def _pair(record: Mapping[str, Any]) -> Pair:
    prompt = record["prompt"]
    messages = tuple(Message(role=item["role"], content=item["content"]) for item in prompt["messages"])
    if not messages:
        raise ValueError("the prompt has no message")
    tools = tuple(
        ToolSpec(name=item["name"], description=item["description"], parameters=item["parameters"])
        for item in (tool["function"] for tool in prompt["tools"])
    )
    return Pair(
        id=str(record["id"]),
        cluster=str(record["task"]["cluster"]),
        held_out=bool(record["held_out"]),
        prompt=Prompt(messages=messages, tools=tools),
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
        raise ValueError(f"the reward {reward} is no finite number")
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
