"""Recorded episodes of OpenEnv's harnesses, imported as the attempts of an evaluation.

A file has one episode per line, in one of two forms, which may be mixed:

- `EpisodeRecord` of OpenEnv's `CollectRunner` (results.jsonl): messages, reward and `done`, without tokens.
- The same fields beside `training_trace`, a `TrainingTrace`: the request, the response and the exact tokens of every
  model call. A `TrainingTrace` has no reward, because the session's `verify()` gives it; so the line has it.

Its messages serve `finqa sft`, its tokens `finqa dpo`. A harness that rewrites its conversation between two calls
leaves no single conversation to imitate, and a completion that is masked in part has no place in the records: such
episodes are left out, each with its reason.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError
from finqa_cli.evaluation.evaluate import OUTPUTS, eval_parameters, write_results
from finqa_cli.evaluation.unfinished_run import TARGET
from finqa_cli.runs.durable_files import sha256_of
from finqa_cli.runs.run_folder import FAULTS, new_run, write_manifest
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.statistics import summarize
from finqa_cli.types import (
    Message,
    Observation,
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

LONGEST_LINE = 256 * 2**20
"""Bytes of one line: a long episode repeats its prompt tokens in each of a hundred calls."""


class UnusableEpisodeError(Exception):
    """An episode that is well-formed, and has no form as an attempt; the message is the reason."""


class _Function(BaseModel):
    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str = Field(default_factory=dict)

    def call(self) -> ToolCall:
        """Return the call; arguments are an object, or its text as in OpenAI's format."""
        if isinstance(self.arguments, dict):
            return ToolCall(name=self.name, arguments=self.arguments)
        arguments = parse_json(self.arguments) if self.arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {self.name} are not an object")
        return ToolCall(name=self.name, arguments=arguments)


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Message(BaseModel):
    """A message in OpenAI's format, as a harness sends it or a model returns it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(
                str(part["text"]) for part in self.content if part.get("type") == "text" and "text" in part
            )
        return self.content or ""

    @property
    def images(self) -> tuple[str, ...]:
        parts = self.content if isinstance(self.content, list) else []
        return tuple(str(part["image_url"]["url"]) for part in parts if part.get("type") == "image_url")


class _Request(BaseModel):
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None


class _Reply(_Message):
    role: Literal["assistant"] = "assistant"


class _Choice(BaseModel):
    message: _Reply
    finish_reason: str | None = None


class _Response(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class _TracedCall(BaseModel):
    """`TrainingTurn` of OpenEnv, by its rules: the mask covers prompt and completion, and is 0 in the prompt."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: _Request
    response: _Response

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        prompt, completion, mask = len(self.prompt_token_ids), len(self.completion_token_ids), self.loss_mask
        if not prompt or min(*self.prompt_token_ids, *self.completion_token_ids, 0) < 0:
            raise ValueError("token ids are integers of 0 or more, and a prompt has some")
        if len(self.per_token_logps) != completion or len(mask) != prompt + completion:
            raise ValueError("per_token_logps covers the completion, loss_mask prompt and completion")
        if not all(math.isfinite(logp) and logp <= 0 for logp in self.per_token_logps):
            raise ValueError("a log-probability is a finite number of 0 or less")
        if set(mask) - {0, 1} or any(mask[:prompt]):
            raise ValueError("loss_mask has the values 0 and 1, and 0 for the prompt")
        return self

    @property
    def supervised(self) -> list[int]:
        """Mask of the completion."""
        return self.loss_mask[len(self.prompt_token_ids) :]


class _Trace(BaseModel):
    schema_version: Literal[1] = 1
    turns: list[_TracedCall]


class _Episode(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)

    episode_id: str = ""
    task: Any = None
    messages: list[_Message] = Field(default_factory=list)
    training_trace: _Trace | None = None
    reward: float
    done: bool = True


@dataclass(frozen=True, slots=True)
class ImportedEpisodes:
    """What was imported.

    Attributes:
        run: Folder of the run.
        attempts: Imported attempts.
        with_tokens: Those of them that have the exact tokens of every call.
        reward_mean: Mean reward of the attempts.
        left_out: Reason -> number of episodes that have no form as an attempt.
    """

    run: Path
    attempts: int
    with_tokens: int
    reward_mean: float
    left_out: Mapping[str, int]


def import_episodes(
    files: Sequence[Path], settings: Settings, run: Path, *, target: str, split: str
) -> ImportedEpisodes:
    """Write the episodes of the files as the attempts of an evaluation.

    Args:
        files: Files with one episode per line.
        settings: Recorded as the settings of the evaluation: the environment in which trained policies are validated.
        run: A new folder.
        target: Name of what played, in reports.
        split: Split of the tasks.

    Raises:
        DataError: A file is missing, a line is malformed, or no episode can be imported.
        ConfigError: The folder is not empty.
    """
    trajectories: list[Trajectory] = []
    left_out: Counter[str] = Counter()
    members: Counter[str] = Counter()
    ids: set[str] = set()
    for file in files:
        for place, episode in _read(file):
            try:
                trajectory = _attempt(episode, split)
            except UnusableEpisodeError as reason:
                left_out[str(reason)] += 1
                continue
            task = trajectory.task.id
            name = episode.episode_id or f"{task}/{members[task]}"
            if name in ids:
                raise DataError(f"{place}: the episode {name} occurs twice.", remedy="leave out one of them")
            ids.add(name)
            trajectories.append(replace(trajectory, id=name, member=members[task]))
            members[task] += 1
    if not trajectories:
        reasons = "; ".join(f"{count} times: {reason}" for reason, count in left_out.items())
        raise DataError(f"There is no episode to import. {reasons}".strip(), remedy="name a file with other episodes")
    _write(trajectories, files, settings, run, target, split)
    rewards = [trajectory.rewards.total for trajectory in trajectories if trajectory.rewards is not None]
    return ImportedEpisodes(
        run=run,
        attempts=len(trajectories),
        with_tokens=sum(bool(trajectory.turns[0].completion_ids) for trajectory in trajectories),
        reward_mean=math.fsum(rewards) / len(rewards),
        left_out=dict(left_out),
    )


def _write(
    trajectories: Sequence[Trajectory], files: Sequence[Path], settings: Settings, run: Path, target: str, split: str
) -> None:
    digests = {str(file): sha256_of(file) for file in files}
    digest = "sha256:" + hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest()
    data = {"name": files[0].name, "digest": digest, "evaluation_only": False}
    parameters = {**eval_parameters(settings, target), "split": split}
    inputs = {"files": digests, "data": data}
    with new_run(run, command="eval", settings=settings, more={TARGET: target, "imported": True}) as folder:
        folder.plan(len(trajectories))
        folder.pin("data digest", digest)
        facts = {"phase": "eval", "iteration": 0}
        records = [
            {**facts, **trajectory_record(each, token_ids=bool(each.turns[0].completion_ids))} for each in trajectories
        ]
        for written in [folder.attempt(record) for record in records]:
            written.result()
        report = summarize(trajectories)
        write_results(run, records, report, {"target": target, "data": data, "split": split})
        outputs = [run / name for name in OUTPUTS]
        write_manifest(run, "eval", parameters=parameters, inputs=inputs, outputs=outputs)
        folder.note(FAULTS, report.faults)
        folder.finish("completed")


def _read(file: Path) -> list[tuple[str, _Episode]]:
    episodes: list[tuple[str, _Episode]] = []
    try:
        with file.open("rb") as lines:
            number = 0
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                place = f"{file}, line {number}"
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{place}: longer than {LONGEST_LINE // 2**20} MiB.", remedy="leave that line out")
                if not line.isspace():
                    episodes.append((place, _episode(line, place)))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.", remedy="name a results.jsonl") from error
    return episodes


def _episode(line: bytes, place: str) -> _Episode:
    try:
        return _Episode.model_validate(parse_json(line))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        if problem["loc"] == ("reward",):
            where = "reward (a TrainingTrace has none: write what the session's verify() gave)"
        raise DataError(f"{place}: {where}: {problem['msg']}.", remedy="docs/own-environments.md") from error
    except ValueError as error:
        raise DataError(
            f"{place} {error}.", remedy=f"correct or remove that line of {place.partition(',')[0]}"
        ) from error


def _attempt(episode: _Episode, split: str) -> Trajectory:
    """Return the attempt, without its id and number.

    Raises:
        UnusableEpisodeError: It has no form as an attempt.
    """
    calls = [each for each in episode.training_trace.turns if any(each.supervised)] if episode.training_trace else []
    if episode.training_trace and not calls:
        raise UnusableEpisodeError("no call of the trace is for training")
    messages = _conversation(calls) if calls else episode.messages
    first = next((number for number, each in enumerate(messages) if each.role == "assistant"), len(messages))
    opening, rest = messages[:first], messages[first:]
    if not opening or not rest:
        raise UnusableEpisodeError("it has no prompt or no reply of the model")
    turns = _turns(rest, done=episode.done)
    tools = calls[-1].request.tools if calls else None
    question = next((each.text for each in reversed(opening) if each.role == "user"), opening[-1].text)
    name = _task_name(episode.task) or hashlib.sha256(question.encode()).hexdigest()[:16]
    return Trajectory(
        id="",
        task=Task(id=name, prompt=question, split=split, cluster=name),
        member=0,
        seed=0,
        status=Status.COMPLETED if episode.done else Status.MAX_TURNS,
        messages=tuple(_opening(each) for each in opening),
        tools=tuple(_tool(tool) for tool in tools or ()),
        several_calls=any(turn.further_steps for turn in turns),
        turns=_with_tokens(turns, calls) if calls else turns,
        rewards=Rewards(total=episode.reward),
    )


def _conversation(calls: Sequence[_TracedCall]) -> list[_Message]:
    """Return the messages of all calls, of which each continues the one before.

    Raises:
        UnusableEpisodeError: The harness rewrote its conversation, or a completion is masked in part.
    """
    if any(not all(each.supervised) for each in calls):
        raise UnusableEpisodeError("a completion is for training in part only")
    messages = list(calls[0].request.messages)
    if any(each.role == "assistant" for each in messages):
        raise UnusableEpisodeError("the first request has replies of a model already")
    for before, call in pairwise(calls):
        known, sent = before.request.messages, call.request.messages
        answered, new = sent[len(known) : len(known) + 1], sent[len(known) + 1 :]
        # Harnesses write a reply back in their own form, so the reply itself comes from the response.
        continues = sent[: len(known)] == known and [each.role for each in answered] == ["assistant"]
        if not continues or any(each.role == "assistant" for each in new):
            raise UnusableEpisodeError("the harness rewrote its conversation between two calls")
        messages += [before.response.choices[0].message, *new]
    return [*messages, calls[-1].response.choices[0].message]


def _turns(messages: Sequence[_Message], *, done: bool) -> tuple[Turn, ...]:
    """Return a turn for each message of the model, with the replies of tools or of the user up to the next.

    Raises:
        UnusableEpisodeError: Replies do not belong to the calls before them.
    """
    starts = [number for number, each in enumerate(messages) if each.role == "assistant"]
    turns = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        said, replies = messages[start], messages[start + 1 : end]
        last = end == len(messages)
        asked = said.tool_calls or []
        if not asked:
            reply = Observation(
                text="\n".join(each.text for each in replies),
                images=tuple(image for each in replies for image in each.images),
            )
            turns.append(Turn(text=said.text, observation=reply if replies else None))
            continue
        if any(each.role != "tool" for each in replies) or len(replies) > len(asked):
            raise UnusableEpisodeError("a message that is no reply of a tool follows a call")
        steps = _steps(asked, replies, done=done and last)
        turns.append(
            Turn(
                text=said.text,
                words=said.text,
                tool_call=steps[0].call,
                observation=steps[0].observation,
                further_steps=steps[1:],
            )
        )
    return tuple(turns)


def _steps(asked: Sequence[_Call], replies: Sequence[_Message], *, done: bool) -> tuple[Step, ...]:
    """Return the calls of a turn with their replies, which name their call or have its place."""
    by_id = {each.tool_call_id: each for each in replies if each.tool_call_id}
    steps = []
    for number, call in enumerate(asked):
        placed = replies[number] if number < len(replies) and not by_id else None
        reply = by_id.get(call.id) if by_id else placed
        seen = None if reply is None else Observation(text=reply.text, images=reply.images, done=done)
        try:
            steps.append(Step(call=call.function.call(), observation=seen))
        except ValueError as error:
            raise UnusableEpisodeError(f"a call cannot be read: {error}") from error
    return tuple(steps)


def _with_tokens(turns: Sequence[Turn], calls: Sequence[_TracedCall]) -> tuple[Turn, ...]:
    """Add the exact tokens of the calls: a prompt that continues the sequence has its new tokens only."""
    found: list[Turn] = []
    sequence: list[int] = []
    for turn, call in zip(turns, calls, strict=True):
        continues = bool(sequence) and call.prompt_token_ids[: len(sequence)] == sequence
        found.append(
            replace(
                turn,
                prompt_ids=tuple(call.prompt_token_ids[len(sequence) :] if continues else call.prompt_token_ids),
                restarts=bool(sequence) and not continues,
                completion_ids=tuple(call.completion_token_ids),
                logprobs=tuple(call.per_token_logps),
                stop="length" if call.response.choices[0].finish_reason == "length" else "stop",
            )
        )
        sequence = call.prompt_token_ids + call.completion_token_ids
    return tuple(found)


def _opening(message: _Message) -> Message:
    role: Role = "system" if message.role in ("system", "developer") else "user"
    return Message(role=role, content=message.text, images=message.images)


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or function.get("input_schema") or {"type": "object", "properties": {}}
    return ToolSpec(
        name=str(function.get("name", "")), description=str(function.get("description") or ""), parameters=parameters
    )


def _task_name(task: Any) -> str:
    """Return a stable name of a task, which OpenEnv does not define: its id if it has one, else all of it."""
    if isinstance(task, Mapping):
        named = next((task[key] for key in ("id", "task_id", "name", "index") if task.get(key) not in (None, "")), None)
        task = named if named is not None else json.dumps(task, sort_keys=True)
    return "" if task is None else str(task)[:255]
