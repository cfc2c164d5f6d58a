"""The `finqa` environment: its tasks come from a snapshot, its episodes run on the server inside a box."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finqa_cli.contracts import EnvironmentContext, Sandbox
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, EpisodeError
from finqa_cli.types import Observation, Prompt, Rewards, SandboxSpec, Snapshot, Task, ToolCall
from finqa_plugins.openenv_finqa.client import OpenEnvClient, RefusedRequestError
from finqa_plugins.openenv_finqa.config import FinQAConfig
from finqa_plugins.openenv_finqa.prompt import opening
from finqa_plugins.openenv_finqa.tools import SUBMIT

SERVER_MODULE = "finqa_plugins.openenv_finqa.server"
NO_ANSWER = "no answer submitted"
_ORDER = ("train", "dev", "test")
_FIELDS = ("id", "company", "user_query", "split")


class FinQAEnvironment:
    """See `finqa_cli.contracts.Environment`."""

    def __init__(self, config: FinQAConfig | None, context: EnvironmentContext) -> None:
        if context.snapshot is None:
            raise ConfigError("The finqa environment needs a snapshot.", remedy="finqa snapshot build")
        self._config = config or FinQAConfig()
        self._snapshot: Snapshot = context.snapshot
        self._max_turns = context.max_turns
        self._by_split: dict[str, tuple[Task, ...]] | None = None

    def sandbox_spec(self) -> SandboxSpec:
        """A box with the snapshot and our server in it."""
        environment = {
            # One more than our own limit, so that the episode ends here and is never cut short over there.
            "FINQA_MAX_STEPS": str(self._max_turns + 1),
            "FINQA_SESSION_TIMEOUT": f"{self._config.session_timeout_s:g}",
        }
        return SandboxSpec(snapshot=self._snapshot, module=SERVER_MODULE, environment=environment)

    def splits(self) -> Sequence[str]:
        """Train, dev and test first, then others by name."""
        return tuple(self._tasks())

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split in the order of the file.

        Raises:
            DataError: There is no such split, or tasks.jsonl is damaged.
        """
        known = self._tasks()
        if split not in known:
            raise DataError(
                f"Snapshot {self._snapshot.name!r} has no split {split!r}; it has: {', '.join(known)}.",
                remedy=f"finqa snapshot show {self._snapshot.name}",
            )
        return known[split]

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> FinQASession:
        """Connects and begins an episode of exactly this task.

        Raises:
            SandboxError: The server cannot be reached.
            EnvironmentFault: The server does not know the task.
        """
        if sandbox is None:
            raise ConfigError("The finqa environment runs in a sandbox, but none was given.", remedy="--sandbox local")
        client = OpenEnvClient(
            sandbox.url(),
            connect_timeout_s=self._config.connect_timeout_s,
            reply_timeout_s=self._config.reply_timeout_s,
        )
        await client.connect()
        try:
            await client.reset(question_id=task.id, seed=seed)
        except BaseException:
            await client.close()
            raise
        return FinQASession(client, task)

    def _tasks(self) -> dict[str, tuple[Task, ...]]:
        if self._by_split is None:
            by_split: dict[str, list[Task]] = {}
            for task in read_tasks(self._snapshot.path / "tasks.jsonl"):
                by_split.setdefault(task.split, []).append(task)
            order = [split for split in _ORDER if split in by_split] + sorted(by_split.keys() - set(_ORDER))
            self._by_split = {split: tuple(by_split[split]) for split in order}
        return self._by_split


class FinQASession:
    """See `finqa_cli.contracts.Session`."""

    def __init__(self, client: OpenEnvClient, task: Task) -> None:
        self._client = client
        self._task = task
        self._reward: float | None = None

    def prompt(self) -> Prompt:
        """System instructions, the question and the four tools."""
        return opening(self._task.cluster, self._task.prompt)

    async def step(self, call: ToolCall) -> Observation:
        """Carries out one tool call; whatever is wrong with the call itself is told in the observation.

        Raises:
            SandboxError: The connection is lost.
            EnvironmentFault: The server broke its protocol.
        """
        try:
            reply = await self._client.call_tool(call.name, call.arguments)
        except RefusedRequestError as error:
            return Observation(text=f"Error: {error}", is_error=True)
        observation: dict[str, Any] = reply["observation"]
        if reply["done"]:
            self._reward = self._reward_of(reply)
        if refusal := observation.get("error"):
            message = refusal.get("message", "") if isinstance(refusal, dict) else refusal
            return Observation(text=f"Error: {message}", done=reply["done"], is_error=True)
        if reply["done"]:
            return Observation(text=_farewell(call), done=True)
        text = _result_text(observation)
        return Observation(text=text, is_error=text.startswith("Error"))

    async def grade(self) -> Rewards:
        """The server's reward, with its reason; 0 for an episode without an answer.

        Raises:
            EnvironmentFault: The server ended the episode without a reward.
        """
        if self._reward is None:
            return Rewards(total=0.0, components={"correct": 0.0}, explanation=NO_ANSWER)
        try:
            explanation = str((await self._client.state()).get("explanation", ""))
        except EpisodeError:
            explanation = ""  # the reward is known; its reason is only for people
        return Rewards(total=self._reward, components={"correct": self._reward}, explanation=explanation)

    async def close(self) -> None:
        """Hangs up."""
        await self._client.close()

    def _reward_of(self, reply: dict[str, Any]) -> float:
        reward = reply.get("reward")
        if isinstance(reward, int | float):
            return float(reward)
        if self._reward is not None:
            return self._reward  # a call after the end: the first verdict stands
        raise EnvironmentFault("The environment server ended the episode without a reward.")


def read_tasks(path: Path) -> list[Task]:
    """Tasks of a compiled snapshot in the order of the file.

    Raises:
        DataError: The file is missing, a line is no JSON object, a field is missing, or an id appears twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028 too
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path}: {error}", remedy="finqa snapshot build") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        task = _task(line, f"{path}, line {number}")
        if task.id in tasks:
            raise DataError(f"{path}, line {number}: id {task.id!r} appears twice.", remedy="finqa snapshot build")
        tasks[task.id] = task
    return list(tasks.values())


def _task(line: str, place: str) -> Task:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}).", remedy="finqa snapshot build") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: not a JSON object.", remedy="finqa snapshot build")
    for field in _FIELDS:
        if not isinstance(row.get(field), str) or not row[field]:
            raise DataError(f"{place}, field {field!r}: missing or no text.", remedy="finqa snapshot build")
    return Task(
        id=row["id"],
        prompt=row["user_query"],
        split=row["split"],
        cluster=row["company"],
        kind=str(row.get("type") or ""),
    )


def _result_text(observation: dict[str, Any]) -> str:
    result = observation.get("result")
    text = result.get("data") if isinstance(result, dict) else result
    if not isinstance(text, str):
        raise EnvironmentFault("The environment server broke the protocol: a tool result without text.")
    return text


def _farewell(call: ToolCall) -> str:
    if call.name == SUBMIT:
        return f"Answer submitted: {call.arguments.get('answer')}"
    return "The episode is over: the step limit is reached."
