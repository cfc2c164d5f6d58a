"""Any OpenEnv server as an environment: tools from its list or its schema of actions, rewards summed over steps."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import Environment, EnvironmentContext, Sandbox, ServingSandbox, Session
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault
from finqa_cli.types import (
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    ServerSpec,
    Task,
    ToolCall,
    ToolSpec,
)
from finqa_plugins.environments._openenv.openenv_client import (
    FAILED_STEP,
    REFUSALS,
    NoFreeSessionError,
    OpenEnvClient,
    RefusedRequestError,
)
from finqa_plugins.environments._openenv.server_facts import ServerFacts, read_facts
from finqa_plugins.environments._openenv.server_token import read_token
from finqa_plugins.environments._task_files.given_tasks import (
    GivenTask,
    digest_of,
    find_answer,
    read_tasks,
    tasks_of_split,
)
from finqa_plugins.environments._task_files.task_rows import group_by_split
from finqa_plugins.environments.openenv.actions import (
    action_tool,
    only_text,
    read_observation,
    read_result,
    shorten,
)
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.server_source import server_spec
from finqa_plugins.environments.openenv.server_tasks import RESET, NoTaskListError, may_list_tasks, server_tasks

SEEDS = 200
"""Number of tasks of a server that lists none."""

_OF_TASKS = ("id", "split", "cluster", "kind", "prompt")
BACKOFF = Backoff(first_s=0.05, longest_s=1.0)
_OVER = Observation(text="Error: the episode is over.", done=True, is_error=True)


class OpenEnvEnvironment(Environment):
    """The client of an OpenEnv server. Tasks are seeds, or rows with the arguments of `reset`."""

    def __init__(self, config: OpenEnvConfig | None, context: EnvironmentContext) -> None:
        """Read the tasks; no sandbox is started yet.

        Raises:
            ConfigError: No server is named, a reward is given, or the server should list its tasks but cannot.
            DataError: The file of tasks is missing or malformed.
            SandboxError: The server that should list its tasks does not answer.
        """
        if config is None or not (config.url or config.module or config.image):
            raise ConfigError(
                "The openenv environment needs a server.",
                remedy="--set environment.options.url=http://HOST:PORT, or module=FOLDER, or image=NAME",
            )
        if context.reward is not None:
            raise ConfigError("The openenv environment is graded by its server.", remedy="leave --reward out")
        self._config = config
        self._source = config.url or config.module or config.image
        self._spec = server_spec(config)
        listed = _listed(config, self._spec) if context.data is None else []
        self._listed = bool(listed)
        rows = read_tasks(listed, "the server's list", bare=True) if listed else _rows(context, config)
        self._given = {each.task.id: each for each in rows}
        self._splits = group_by_split((each.task.split, each.task) for each in rows)
        self._facts: ServerFacts | None = None
        self._tools: Sequence[ToolSpec] = ()
        self._looking = asyncio.Lock()

    def sandbox_spec(self) -> ServerSpec | None:
        """Return the specification of the server's sandbox; None if the options name a running server."""
        return self._spec

    def data(self) -> DataInfo:
        """Return the server's address, module or image, with a digest of the tasks."""
        return DataInfo(name=self._source, digest=digest_of(self._source, list(self._given.values())))

    def splits(self) -> Sequence[str]:
        """Return the splits that have tasks."""
        return tuple(self._splits)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split.

        Raises:
            DataError: There is no such split.
        """
        return tasks_of_split(self._splits, split, self._source)

    def right_answer(self, task: Task) -> str:
        """Return the value of `answer`, `truth`, `target`, `expected` or `solution` in the task; empty without one."""
        return find_answer(self._given[task.id].values)

    async def check_ready(self) -> None:
        """Check a running server, so that a wrong or unresponsive one is reported before anything is started.

        Raises:
            SandboxError: The server does not answer, or is not an OpenEnv server.
            AuthenticationError: The server needs a token, or another one; or the token's variable is not set.
        """
        if self._config.url:
            self._facts = await read_facts(self._config.url, token=read_token(self._config.token_env))

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session:
        """Connect, reset the server for this task, and find its tools.

        Raises:
            SandboxError: The server cannot be reached or has no session free.
            EnvironmentFault: The server refuses the reset, or has neither tools nor a schema of actions.
            ConfigError: Neither a serving sandbox nor the address of a server is given.
        """
        if isinstance(sandbox, ServingSandbox):
            url, name = sandbox.url(), sandbox.id
        elif self._config.url:
            url, name = self._config.url, ""
        else:
            raise ConfigError("The openenv environment runs on a server in a sandbox.", remedy="--sandbox local")
        given = self._given.get(task.id)
        if given is None:
            raise EnvironmentFault(f"This environment has no task {task.id!r}.")
        deadline = asyncio.get_running_loop().time() + self._config.connect_timeout_s
        for attempt in itertools.count(1):
            try:
                return await self._begin(given, url, name)
            except NoFreeSessionError:  # servers often allow one session, and release it a moment after its end
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(BACKOFF.pause_s(attempt))
        raise AssertionError("unreachable")

    async def _begin(self, given: GivenTask, url: str, sandbox: str) -> OpenEnvSession:
        client = OpenEnvClient(
            url,
            sandbox=sandbox,
            token=read_token(self._config.token_env),
            connect_timeout_s=self._config.connect_timeout_s,
            reply_timeout_s=self._config.reply_timeout_s,
            max_reply_bytes=int(self._config.max_reply_mb * 2**20),
            refusals=(*REFUSALS, FAILED_STEP) if self._config.tool_exceptions == "model" else REFUSALS,
        )
        await client.connect()
        try:
            facts = await self._look(client, url, sandbox)
            arguments = {name: value for name, value in given.values.items() if name not in _OF_TASKS}
            if self._listed:
                arguments = {**arguments, **arguments.pop(RESET, {})}
            first = await client.reset(**{**self._config.reset, **arguments})
        except BaseException:
            await client.close()
            raise
        return OpenEnvSession(client, self._config, facts, self._tools, self._opening(facts, given, first))

    async def _look(self, client: OpenEnvClient, url: str, sandbox: str) -> ServerFacts:
        """Return what the server reports about itself, requested once for all sessions."""
        async with self._looking:
            if self._facts is None:
                token = read_token(self._config.token_env)
                timeout_s = self._config.reply_timeout_s
                self._facts = await read_facts(url, sandbox=sandbox, token=token, timeout_s=timeout_s)
            if not self._tools:
                self._tools = tuple(await client.list_tools()) or (action_tool(self._facts.action),)
            return self._facts

    def _opening(self, facts: ServerFacts, given: GivenTask, first: Mapping[str, Any]) -> Prompt:
        observation = first.get("observation")
        known = observation if isinstance(observation, Mapping) else {}
        seen, images = read_observation(known, self._config.fields)
        seen = shorten(seen, self._config.observation_chars)
        asked = str(given.values.get("prompt") or "")
        system = self._config.instructions or " ".join(filter(None, (_called(facts.name), facts.description)))
        user = "\n\n".join(filter(None, (asked, seen))) or "Begin."
        messages = (Message(role="system", content=system), Message(role="user", content=user, images=images))
        return Prompt(messages=messages if system else messages[1:], tools=tuple(self._tools))


class OpenEnvSession(Session):
    """One episode on the server."""

    def __init__(
        self,
        client: OpenEnvClient,
        config: OpenEnvConfig,
        facts: ServerFacts,
        tools: Sequence[ToolSpec],
        prompt: Prompt,
    ) -> None:
        self._client = client
        self._config = config
        self._prompt = prompt
        self._names = frozenset(tool.name for tool in tools)
        self._typed = len(tools) == 1 and "tool_name" not in facts.action.get("properties", {})
        self._text_field = only_text(tools[0]) if self._typed and config.plain_text else ""
        self._rewards: list[float] = []
        self._over = False

    @property
    def takes_text(self) -> bool:  # type: ignore[override]
        """Whether a turn in plain text is an action."""
        return bool(self._text_field)

    def prompt(self) -> Prompt:
        """Return the server's description, its first observation, and its tools."""
        return self._prompt

    async def step(self, call: ToolCall) -> Observation:
        """Call a tool, or take the typed action; the model gets an error message for what the server refuses.

        Raises:
            SandboxError: The connection is lost.
            EnvironmentFault: The server broke its protocol.
        """
        if self._over:
            return _OVER
        if call.name not in self._names:
            known = ", ".join(sorted(self._names))
            return Observation(text=f"Error: there is no tool {call.name[:64]!r}. Tools: {known}.", is_error=True)
        try:
            if self._typed:
                reply = await self._client.step(call.arguments)
                text, images = read_observation(reply["observation"], self._config.fields)
                failed = False
            else:
                reply = await self._client.call_tool(call.name, call.arguments)
                text, images, failed = read_result(reply["observation"])
        except RefusedRequestError as error:
            return Observation(text=shorten(f"Error: {error}", self._config.observation_chars), is_error=True)
        self._rewards.append(_reward(reply, step=len(self._rewards) + 1))
        self._over = bool(reply["done"])
        shown = shorten(text, self._config.observation_chars) or ("The episode is over." if self._over else "ok")
        return Observation(text=shown, done=self._over, is_error=failed and not self._over, images=images)

    async def reply(self, text: str) -> Observation:
        """Use a turn in plain text as the action, if actions are one text."""
        (name,) = self._names if self._text_field else ("",)
        if not name:
            return await super().reply(text)
        said = text.rpartition("</think>")[2].strip()
        return await self.step(ToolCall(name=name, arguments={self._text_field: said}))

    async def grade(self) -> Rewards:
        """Return the discounted sum of the rewards of all steps."""
        discount = self._config.discount
        total = sum(reward * discount**step for step, reward in enumerate(self._rewards))
        solved = {} if self._config.solved_at is None else {"correct": float(total >= self._config.solved_at)}
        steps = len(self._rewards)
        explanation = f"rewards of {steps} step{'s' if steps != 1 else ''}"
        return Rewards(total=total, components=solved, explanation=explanation if steps else "no step was taken")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _listed(config: OpenEnvConfig, spec: ServerSpec | None) -> list[dict[str, Any]]:
    """Return the tasks that the server lists; empty if it lists none, or is not asked."""
    if isinstance(config.tasks, int) or (config.tasks == "auto" and not may_list_tasks(config.url, spec)):
        return []
    try:
        return server_tasks(config.url, spec, read_token(config.token_env) if config.url else "")
    except NoTaskListError:
        if config.tasks == "auto":
            return []
        raise


def _rows(context: EnvironmentContext, config: OpenEnvConfig) -> list[GivenTask]:
    if context.data is None:
        count = config.tasks if isinstance(config.tasks, int) else SEEDS
        rows: list[Any] = [{"id": f"seed_{seed:04d}", "seed": seed} for seed in range(count)]
        return read_tasks(rows, "environment.options.tasks", bare=True)
    try:
        lines = context.data.read_text(encoding="utf-8").splitlines()
        rows = [parse_json(line) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"{context.data} has no tasks: {error}.",
            remedy='give a JSONL file with the arguments of a reset in each row, such as {"seed": 1}',
        ) from error
    return read_tasks(rows, str(context.data), bare=True)


def _reward(reply: Mapping[str, Any], *, step: int) -> float:
    """Return the reward of a step.

    Raises:
        EnvironmentFault: It is not a finite number.
    """
    reward = reply.get("reward")
    if reward is None:
        return 0.0
    if not isinstance(reward, bool | int | float):
        raise EnvironmentFault(
            f"The environment server gave a reward that is a {type(reward).__name__} in step {step}."
        )
    try:
        number = float(reward)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise EnvironmentFault(f"The environment server gave a reward of {number} in step {step}.")
    return number


def _called(name: str) -> str:
    return f"You act in the environment {name}." if name else ""
