"""The `finqa` environment: its tasks come from a snapshot, its episodes run on the server inside a sandbox.

The server grades answers. This client compares them exactly with the gold answers of the snapshot, asks a judge about
those that the grader `judge` cannot read, and applies a configured reward.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from finqa_cli.contracts import Environment, EnvironmentContext, Sandbox, ServingSandbox, Session
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, EpisodeError
from finqa_cli.grading import Verdict, grade, profile_of
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    ServerSpec,
    Snapshot,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
)
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient, RefusedRequestError
from finqa_plugins.environments._openenv.server_facts import read_facts
from finqa_plugins.environments._openenv.server_token import read_token
from finqa_plugins.environments._task_files.task_rows import group_by_split
from finqa_plugins.environments.openenv_finqa.config import OPENENV, SERVER_NEEDS, FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_prompt import read_prompt, tool_specs
from finqa_plugins.environments.openenv_finqa.finqa_tools import (
    ASK_AGAIN,
    SUBMIT,
    TOOLS,
    served_tools,
)
from finqa_plugins.environments.openenv_finqa.finqa_verdicts import (
    NO_ANSWER,
    Verdicts,
    is_returned,
    measure_judged,
    sent_arguments,
    submitted_answer,
)
from finqa_plugins.environments.openenv_finqa.gold_truths import GOLD, Truths, gold_turn
from finqa_plugins.environments.openenv_finqa.snapshot_tasks import read_tasks

SERVER_MODULE = "finqa_plugins.environments.openenv_finqa.server.run_server"
CONNECTIONS_PER_PEER = 8192
"""Limit of a sandbox's server: more than its 4,096 sessions and its health checks need."""


class FinQAEnvironment(Environment):
    """The client of a server with financial questions over SQL tools."""

    def __init__(self, config: FinQAConfig | None, context: EnvironmentContext) -> None:
        assert context.snapshot is not None, "wiring opens one for every environment that is not snapshotless"
        self._config = config or FinQAConfig()
        self._snapshot: Snapshot = context.snapshot
        self._max_turns = context.max_turns
        self._truths = Truths(context.snapshot)
        grader = self._config.grader
        self._judge = context.judge
        self._verdicts = Verdicts(self._truths, grader=grader, reward=context.reward, judge=self._judge)
        self._prompt = read_prompt(self._config.prompt_file)
        self.grader = "" if self._config.url else grader  # a running server has its own rules
        if self._judge is not None:
            self.grader = f"{grader} ({profile_of(grader)}, then {self._judge.name})"
        self._own_tools = tool_specs(served_tools(profile_of(grader)))
        self._asks_again = profile_of(grader) in ASK_AGAIN and not self._config.url
        self._tools: Sequence[ToolSpec] = self._own_tools if self._config.tools == "own" else ()

    def sandbox_spec(self) -> ServerSpec | None:
        """Return the specification of a sandbox with the snapshot and our server; None if a running server is named."""
        if self._config.url:
            return None
        environment = {
            # One more than our own limit, so that the client ends the episode and never the server.
            "FINQA_MAX_STEPS": str(self._max_turns + 1),
            "FINQA_SESSION_TIMEOUT": f"{self._config.session_timeout_s:g}",
            "FINQA_HINTS": str(int(self._config.hints)),
            "FINQA_JOINS": str(int(self._config.joins)),
            "FINQA_GRADER": profile_of(self._config.grader),
            "FINQA_ASKED_AGAIN": str(self._config.asked_again),
            "FINQA_PANDAS": str(self._config.pandas),
            "FINQA_SNAPSHOT_NAME": self._snapshot.name,
            "FINQA_SNAPSHOT_DIGEST": self._snapshot.digest,
            # The pool is the only client of its sandboxes, and has one address.
            "FINQA_CONNECTIONS_PER_PEER": str(CONNECTIONS_PER_PEER),
            "FINQA_SESSIONS_PER_PEER": str(CONNECTIONS_PER_PEER),
        }
        return ServerSpec(
            snapshot=self._snapshot,
            module=SERVER_MODULE,
            environment=environment,
            requires=SERVER_NEEDS,
            extra=OPENENV,
        )

    def data(self) -> DataInfo:
        """Return the snapshot, as its manifest describes it."""
        snapshot = self._snapshot
        evaluation_only = bool(snapshot.metadata.get("evaluation_only", False))
        return DataInfo(name=snapshot.name, digest=snapshot.digest, evaluation_only=evaluation_only)

    def splits(self) -> Sequence[str]:
        """Return the splits: train, dev and test first, then others by name."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in the order of the file.

        Raises:
            DataError: There is no such split, or tasks.jsonl is damaged.
        """
        if split not in self._tasks:
            raise DataError(
                f"Snapshot {self._snapshot.name!r} has no split {split!r}; it has: {', '.join(self._tasks)}.",
                remedy=f"--split {next(iter(self._tasks))}",
            )
        return self._tasks[split]

    async def check_ready(self) -> None:
        """Check a running server, so that a wrong or unresponsive one is reported before anything is started.

        Raises:
            SandboxError: The server does not answer within 2 s, or is not an OpenEnv server.
            AuthenticationError: The server needs a token, or another one; or the token's variable is not set.
            ConfigError: The server is another environment.
            FinqaError: The judge cannot be reached.
        """
        if self._judge is not None:
            await self._judge.start()
        url = self._config.url
        if not url:
            return
        where = f"at {url.partition('?')[0]}"
        facts = await read_facts(url, token=read_token(self._config.token_env))
        if not facts.name or "finqa" in facts.name.lower():
            return
        client = self._client(url, None)  # with another name, only an episode shows whether it has financial questions
        try:
            await client.connect()
            await client.reset()
            state = await client.state()
        except EpisodeError:
            return  # it may have no session free now; episodes wait for one
        finally:
            await client.close()
        if not state.keys() & {"current_question", "question_id"}:
            raise ConfigError(
                f"The server {where} is {facts.name or 'another environment'}; it has no financial questions.",
                remedy=f"--environment openenv --set environment.options.url={url.partition('?')[0]}",
            )

    async def close(self) -> None:
        """Free the judge."""
        if self._judge is not None:
            await self._judge.close()

    def spent(self) -> Mapping[str, float]:
        """Return what the judge used."""
        return self._judge.spent if self._judge is not None else {}

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Return the accuracy of rules and judge side by side, with the grader `judge`."""
        return measure_judged(trajectories)

    def _client(self, url: str, sandbox: Sandbox | None) -> OpenEnvClient:
        return OpenEnvClient(
            url,
            sandbox="" if self._config.url or sandbox is None else sandbox.id,
            token=read_token(self._config.token_env),
            connect_timeout_s=self._config.connect_timeout_s,
            reply_timeout_s=self._config.reply_timeout_s,
            tools=TOOLS,
        )

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> FinQASession:
        """Connect and begin an episode of exactly this task.

        Raises:
            SandboxError: The server cannot be reached or has no session free.
            AuthenticationError: The server needs a token, or another one.
            EnvironmentFault: The server does not know the task, or never yields it.
        """
        if isinstance(sandbox, ServingSandbox):
            url = self._config.url or sandbox.url()
        elif not (url := self._config.url):
            given = (
                f"a {type(sandbox).__name__} is no finqa_cli.contracts.ServingSandbox" if sandbox else "none was given"
            )
            raise ConfigError(
                f"The finqa environment runs on a server in a sandbox, but {given}.", remedy="--sandbox local"
            )
        client = self._client(url, sandbox)
        await client.connect()
        try:
            if not self._tools:
                self._tools = await client.list_tools()
            questions = sum(map(len, self._tasks.values()))
            await assign_task(client, task, seed=seed, limit=self._config.max_deals or 2 * questions)
        except BaseException:
            await client.close()
            raise
        prompt = self._prompt.opening(task, self._tools)
        return FinQASession(client, task, prompt, self._verdicts, asks_again=self._asks_again)

    def inputs(self) -> Mapping[str, str]:
        """Return digests of the prompt file and of the server's tools, if they are configured and known."""
        found = {"prompt_file": f"sha256:{self._prompt.sha256}"} if self._config.prompt_file else {}
        if self._config.tools == "server" and self._tools:
            listed = json.dumps([tool.as_function() for tool in self._tools], sort_keys=True)
            found["tools"] = f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
        return found

    def opening(self, task: Task) -> Prompt | None:
        """Return instructions, the question and the tools; None while the tools of the server are not known."""
        return self._prompt.opening(task, self._tools) if self._tools else None

    async def regrade(self, trajectory: Trajectory) -> Rewards:
        """Return the verdict of the grader, as the server computes it, completed by `Verdicts.complete`.

        Raises:
            DataError: The snapshot has no truth for the task, or its file is damaged.
            EnvironmentFault: The judge or the configured reward failed.
        """
        task, answer = trajectory.task, submitted_answer(trajectory)
        found, returned = NO_ANSWER, None
        if answer is not None:
            found = grade(answer, self._truths.of(task), profile_of(self._config.grader), task.prompt)
        if self._asks_again:
            steps = (step for turn in trajectory.turns for step in turn.steps if step.call.name == SUBMIT)
            returned = sum(is_returned(step.observation) for step in steps if step.observation is not None)
        return await self._verdicts.complete(task, answer, found, returned)

    def right_answer(self, task: Task) -> str:
        """Return the gold answer of the snapshot.

        Raises:
            DataError: The snapshot has none for the task, or its file is damaged.
        """
        return self._truths.of(task)

    def right_tables(self, task: Task) -> Sequence[str]:
        """Return the tables of the question in the snapshot."""
        return self._truths.tables(task)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the next turn of a question's gold solution, if the data marks its gold SQL as the expert.

        The turns list the tables, describe the one with the answer, run the gold query and submit the gold answer.
        Return None without that mark: generated questions are solved from their wording.

        Raises:
            ConfigError: The data has the mark, and no gold SQL for this question.
        """
        if self._snapshot.metadata.get("expert") != GOLD:
            return None
        opening = next((message.content for message in messages if message.role == "user"), "")
        task = self._by_opening.get(opening)
        gold = self._truths.gold(task) if task is not None else None
        if task is None or gold is None:
            name, known, all_of_them = self._snapshot.name, self._truths.gold_count, sum(map(len, self._tasks.values()))
            raise ConfigError(
                f"There is no expert for question {task.id if task else opening[:80]!r} of snapshot {name!r}: the data "
                f"has neither gold SQL nor a FinQA program that it can play ({known} of {all_of_them} questions have).",
                remedy=f"finqa eval MODEL --snapshot {name}; or import with `finqa data import tables --with-expert`",
            )
        if len(gold.tables) > 1 and not self._config.joins:
            raise ConfigError(
                f"The gold SQL of question {task.id!r} joins tables, but a query can use only the table that it names.",
                remedy="--set environment.options.joins=true",
            )
        return gold_turn(task, gold, sum(message.role == "assistant" for message in messages))

    @cached_property
    def _by_opening(self) -> Mapping[str, Task]:
        tasks = [task for part in self._tasks.values() for task in part]
        tools = self._tools or self._own_tools
        return {self._prompt.opening(task, tools).messages[-1].content: task for task in reversed(tasks)}

    @cached_property
    def _tasks(self) -> Mapping[str, tuple[Task, ...]]:
        tasks = read_tasks(self._snapshot.path / "tasks.jsonl", self._snapshot.name)
        return group_by_split((task.split, task) for task in tasks)


class FinQASession(Session):
    """One episode on the server."""

    def __init__(
        self,
        client: OpenEnvClient,
        task: Task,
        prompt: Prompt,
        verdicts: Verdicts,
        *,
        asks_again: bool = False,
    ) -> None:
        self._client = client
        self._task = task
        self._prompt = prompt
        self._verdicts = verdicts
        self._returned: int | None = 0 if asks_again else None
        self._answer = ""
        self._reward: float | None = None

    def prompt(self) -> Prompt:
        """Return instructions, the question and the tools."""
        return self._prompt

    async def step(self, call: ToolCall) -> Observation:
        """Execute one tool call; an error of the call itself is in the observation.

        Raises:
            SandboxError: The connection is lost.
            EnvironmentFault: The server broke its protocol.
        """
        if self._reward is not None:
            return Observation(text="Error: The episode is over; reset begins another one.", done=True, is_error=True)
        try:
            reply = await self._client.call_tool(call.name, sent_arguments(call))
        except RefusedRequestError as error:
            return Observation(text=f"Error: {error}", is_error=True)
        observation: dict[str, Any] = reply["observation"]
        if reply["done"]:
            self._reward = self._reward_of(reply)
            self._answer = str(call.arguments.get("answer", "")) if call.name == SUBMIT else ""
        if refusal := observation.get("error"):
            message = refusal.get("message", "") if isinstance(refusal, dict) else refusal
            return Observation(text=f"Error: {message}", done=reply["done"], is_error=True)
        if reply["done"]:
            return Observation(text=_closing_text(call), done=True)
        text = _result_text(observation)
        found = Observation(text=text, is_error=text.startswith("Error"))
        if self._returned is not None and call.name == SUBMIT:
            self._returned += is_returned(found)
        return found

    async def grade(self) -> Rewards:
        """Return the server's reward, with its reason; 0 for an episode without an answer.

        `Verdicts.complete` adds the parts of this client.

        The state is requested first: it shows that question and replies belonged together until the end (see
        `openenv_client`). Only a session that was dropped during a call has no connection left, and no answer.

        Raises:
            SandboxError: The connection is lost, so that it is unknown which episode the reward belongs to.
            EnvironmentFault: The server broke its protocol or now has another question, or judge or reward failed.
            DataError: The snapshot has no truth for the task.
        """
        answered = self._reward is not None
        state = await self._client.state() if answered or self._client.connected else None
        if state is not None and not is_about(state, self._task):
            raise EnvironmentFault(f"The environment server ended question {self._task.id!r} in mid-episode.")
        if state is None or self._reward is None:
            return await self._verdicts.complete(self._task, None, NO_ANSWER, self._returned)
        found = Verdict(self._reward, str(state.get("explanation", "")))
        return await self._verdicts.complete(self._task, self._answer, found, self._returned)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    def _reward_of(self, reply: dict[str, Any]) -> float:
        reward = reply.get("reward")
        if isinstance(reward, int | float):
            return float(reward)
        raise EnvironmentFault("The environment server ended the episode without a reward.")


def _result_text(observation: dict[str, Any]) -> str:
    result = observation.get("result")
    text = result.get("data") if isinstance(result, dict) else result
    if not isinstance(text, str):
        raise EnvironmentFault("The environment server violated the protocol: a tool result without text.")
    return text


def _closing_text(call: ToolCall) -> str:
    if call.name == SUBMIT:
        return f"Answer submitted: {call.arguments.get('answer')}"
    return "The episode is over: the step limit is reached."


async def assign_task(client: OpenEnvClient, task: Task, *, seed: int, limit: int) -> None:
    """Reset, at most `limit` times, until the server's question is the task's.

    OpenEnv's own FinQA server ignores `question_id` and `seed`: each session has its own order of all
    questions, one per reset, and only `state` shows which one it is. So the state is always requested.

    Raises:
        SandboxError: The connection is lost.
        EnvironmentFault: The server refuses, has another question with this id, or never yields the question.
    """
    for _ in range(limit):
        await client.reset(question_id=task.id, seed=seed)
        if is_about(await client.state(), task):
            return
    raise EnvironmentFault(f"The environment server did not yield question {task.id!r} in {limit} resets.")


def is_about(state: Mapping[str, Any], task: Task) -> bool:
    """Whether this is the state of an episode of the task; by text and company if the server gives no id.

    Raises:
        EnvironmentFault: The id is right, but text or company differs: the server has other data than the snapshot.
    """
    question_id, company, text = (state.get(key) for key in ("question_id", "current_company", "current_question"))
    same = (company, text) == (task.cluster, task.prompt)
    if question_id is None or question_id == "":
        return same
    if str(question_id) == task.id and not same:
        raise EnvironmentFault(f"The environment server has another question with the id {task.id!r}.")
    return str(question_id) == task.id
