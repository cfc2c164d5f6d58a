"""Environments of verifiers and tasks of Inspect: the library's own loop, with finqa's engine instead of its model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from finqa_cli.contracts import BaseSession, Environment, EnvironmentContext, Sandbox, Session, TextSession
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, SandboxError
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    Role,
    Task,
    ToolCall,
    ToolSpec,
)
from finqa_interop.config import LibraryConfig
from finqa_interop.host_process import HostProcess, load
from finqa_plugins.environments._task_files.content_parts import read_content
from finqa_plugins.environments._task_files.given_tasks import digest_of, find_answer, read_tasks, tasks_of_split
from finqa_plugins.environments._task_files.task_rows import group_by_split


class LibraryEnvironment(Environment):
    """Serves the tasks of the library's dataset; sessions run in one process that has the library."""

    def __init__(self, config: LibraryConfig, context: EnvironmentContext) -> None:
        """Load the environment, so that one that cannot be run is refused before anything is started.

        Raises:
            ConfigError: The environment cannot be loaded or run, or a reward or data is given.
            DataError: The environment has no tasks.
            MissingDependencyError: The interpreter does not have the library.
        """
        name = f"{config.library}:{config.source}"
        if context.reward is not None or context.data is not None:
            raise ConfigError(
                f"{name} has its own {'score' if context.reward is not None else 'dataset'}.",
                remedy=f"leave {'--reward' if context.reward is not None else '--data'} out; "
                "environment.options.arguments are passed to it",
            )
        self._config = config
        self._name = name
        loaded = load(config)
        self._version = str(loaded["version"])
        rows = [_without_split(row) for row in loaded["tasks"]] if config.divide else loaded["tasks"]
        given = read_tasks(rows, name, bare=True)
        self._answers = {each.task.id: find_answer(each.values) for each in given}
        self._places = {each.task.id: place for place, each in enumerate(given)}
        self._splits = group_by_split((each.task.split, each.task) for each in given)
        self._digest = digest_of(f"{self._version} {sorted(config.arguments.items())!r}", given)
        self._host: HostProcess | None = None

    def data(self) -> DataInfo:
        """Return the environment's name, with a digest of its tasks, arguments and the library's version."""
        return DataInfo(name=self._name, digest=self._digest)

    def right_answer(self, task: Task) -> str:
        """Return the answer or target of the library's dataset; empty if it has none."""
        return self._answers[task.id]

    def inputs(self) -> Mapping[str, str]:
        """Return the library's version."""
        return {"library": self._version}

    def splits(self) -> Sequence[str]:
        """Return the splits that have tasks."""
        return tuple(self._splits)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split in the order of the dataset.

        Raises:
            DataError: There is no such split.
        """
        try:
            return tasks_of_split(self._splits, split, self._name)
        except DataError as error:
            if self._config.divide:
                raise
            remedy = f"{error.remedy}, or --set environment.options.divide=true for all three splits"
            raise DataError(error.message, remedy=remedy) from None

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session | TextSession:
        """Start the library's loop on a task, up to its first request to the model.

        Raises:
            EnvironmentFault: The loop failed, or ended without a request to the model.
            SandboxError: The process ended.
        """
        if self._host is None or not self._host.alive:
            self._host = await HostProcess.start(self._config)
        name = uuid.uuid4().hex
        outcome = await self._host.ask("open", session=name, task=self._places[task.id])
        if "verdict" in outcome:
            raise EnvironmentFault(f"{self._name} ended task {task.id!r} without calling the model.")
        session = LibrarySession if outcome["tools"] else LibraryTextSession
        return session(self._host, name, outcome, self._config.solved_at)


class _Conversation(BaseSession):
    """One episode of the library's loop."""

    def __init__(self, host: HostProcess, name: str, outcome: Mapping[str, Any], solved_at: float) -> None:
        """Begin with the first request of the loop; see `finqa_host.library_host` for its form."""
        self._host = host
        self._name = name
        self._solved_at = solved_at
        self._messages: list[Mapping[str, Any]] = list(outcome["messages"])
        self._tools = outcome["tools"]
        self._verdict: Mapping[str, Any] | None = None
        self._turns = 0
        self._turn = AssistantTurn(text="")
        self._replies: list[Observation] = []
        self._prompt = Prompt(
            messages=tuple(map(_message, self._messages)),
            tools=tuple(map(_tool, self._tools)),
            several_calls=bool(self._tools),
        )

    def prompt(self) -> Prompt:
        """Return the messages and tools of the loop's first request."""
        return self._prompt

    async def reply(self, text: str) -> Observation:
        """Return the reply of the loop to a turn in plain text; the episode ends if the loop has no further request."""
        added = await self._say({"role": "assistant", "content": text, "tool_calls": []})
        said, images = _joined(added)
        return Observation(text=said or "Answer received.", done=self._verdict is not None, images=images)

    async def grade(self) -> Rewards:
        """Return the library's score, also of an episode stopped by a limit; 0 if the policy sent nothing to the loop.

        Raises:
            EnvironmentFault: A reward or scorer failed.
            SandboxError: The process ended.
        """
        if not self._turns:
            return Rewards(total=0.0, components={"correct": 0.0}, explanation="No turn of the policy could be parsed.")
        if self._verdict is None:
            self._take(await self._host.ask("stop", session=self._name))
        if self._verdict is None:
            raise EnvironmentFault("The environment calls the model after the end of the episode.")
        total, parts = float(self._verdict["total"]), dict(self._verdict["parts"])
        correct = float(total >= self._solved_at)
        explanation = " ".join(str(self._verdict["why"]).split())[:300] or f"score {total:g}"
        return Rewards(total=total, components={**parts, "correct": correct}, explanation=explanation)

    async def close(self) -> None:
        """End the loop. Idempotent."""
        try:
            await self._host.ask("close", session=self._name)
        except (EnvironmentFault, SandboxError):
            return  # the process ended, and the loop with it

    async def _say(self, message: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Let the loop continue, and return the messages after the policy's own."""
        if self._verdict is not None:
            raise EnvironmentFault("The episode is over.")
        self._turns += 1
        return self._take(await self._host.ask("turn", session=self._name, message=message), said=True)

    def _take(self, outcome: Mapping[str, Any], *, said: bool = False) -> Sequence[Mapping[str, Any]]:
        if "verdict" in outcome:
            self._verdict = outcome["verdict"]
            return ()
        messages, known = outcome["messages"], len(self._messages)
        if messages[:known] != self._messages or (said and messages[known]["role"] != "assistant"):
            raise EnvironmentFault(
                "The environment rewrites earlier messages, but in finqa, messages can only be appended.",
                remedy="play it with the library's own runner",
            )
        if outcome["tools"] != self._tools:
            raise EnvironmentFault("The environment changes its tools during an episode, which is not supported.")
        self._messages = messages
        return list(messages[known + 1 :])


class LibrarySession(_Conversation, Session):
    """An episode with tools. A turn without a call is sent to the loop as text."""

    takes_text = True

    async def begin_turn(self, turn: AssistantTurn) -> None:
        """Keep the turn: the loop gets all its calls at once."""
        self._turn, self._replies = turn, []

    async def step(self, call: ToolCall) -> Observation:
        """Return the reply of the library's tool; the first call of a turn executes all calls of it."""
        if not self._replies:
            calls = [_written(each, f"call_{self._turns}_{place}") for place, each in enumerate(self._turn.calls)]
            added = await self._say({"role": "assistant", "content": self._turn.words, "tool_calls": calls})
            self._replies = self._observations(calls, added)
        return self._replies.pop(0)

    def _observations(
        self, calls: Sequence[Mapping[str, str]], added: Sequence[Mapping[str, Any]]
    ) -> list[Observation]:
        """Return an observation for each call; messages that answer no call are appended to the last one."""
        by_call = {message["tool_call_id"]: message for message in added if message["role"] == "tool"}
        others = [message for message in added if message["role"] != "tool"]
        replies: list[Observation] = []
        for place, call in enumerate(calls):
            answer = by_call.get(call["id"])
            own = [answer] if answer is not None else []
            last = place == len(calls) - 1
            text, images = _joined([*own, *others] if last else own)
            failed = answer is not None and bool(answer.get("error"))
            done = last and self._verdict is not None
            replies.append(Observation(text=text, images=images, done=done, is_error=failed))
        return replies


class LibraryTextSession(_Conversation, TextSession):
    """An episode without tools: every turn is sent to the loop as text."""


def _without_split(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "split"}


def _message(message: Mapping[str, Any]) -> Message:
    text, images = _read(message)
    calls = [ToolCall(name=call["name"], arguments=_arguments(call)) for call in message.get("tool_calls", ())]
    return Message(
        role=cast(Role, message["role"]),
        content=text,
        images=images,
        tool_call=calls[0] if calls else None,
        further_calls=tuple(calls[1:]),
    )


def _read(message: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    try:
        return read_content(message["content"])
    except ValueError as error:
        raise EnvironmentFault(f"A message of the environment cannot be shown: {error}.") from error


def _joined(messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return the texts of messages, separated by empty lines, and their images."""
    read = [_read(message) for message in messages]
    return "\n\n".join(text for text, _ in read if text), tuple(image for _, images in read for image in images)


def _arguments(call: Mapping[str, str]) -> Mapping[str, Any]:
    value = parse_json(call["arguments"] or "{}")
    return value if isinstance(value, dict) else {"arguments": value}


def _written(call: ToolCall, name: str) -> dict[str, str]:
    return {"id": name, "name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=tool["name"],
        description=tool.get("description") or "",
        parameters=tool.get("parameters") or {"type": "object", "properties": {}},
    )
