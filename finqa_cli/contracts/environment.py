"""Environments provide tasks and grade attempts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts.answer_judge import AnswerJudge
from finqa_cli.contracts.reward import Reward
from finqa_cli.contracts.sandbox_provider import Sandbox
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    SandboxSpec,
    Snapshot,
    Task,
    ToolCall,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPrediction:
    """Result of the published evaluation of a data set for one prediction.

    Attributes:
        id: Id of the question, or of the turn of a dialogue.
        cluster: Cluster of the question.
        figures: The measures by name, each from 0 to 1.
        reason: Why the prediction is wrong, or what a judge says; empty if it is right by rules.
    """

    id: str
    cluster: str
    figures: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPredictions:
    """Results of all predictions of a file.

    Attributes:
        rows: All results that count in the published evaluation.
        known: Number of predictions of questions that the data has.
        missing: Number of questions without a prediction.
        unknown: Number of predictions of questions that the data does not have; they are left out.
    """

    rows: Sequence[ScoredPrediction]
    known: int
    missing: int
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentContext:
    """Context of an environment.

    Attributes:
        snapshot: The compiled data, or None for an environment that reads files or brings its own.
        data: The file or folder to read tasks from, or None for the environment's embedded ones.
        reward: Reward that replaces the environment's own, or None.
        max_turns: Tool calls after which an episode ends.
        judge: Judge of answers that no rule can read; None unless the option `grader` of the environment is `judge`.
    """

    snapshot: Snapshot | None
    data: Path | None = None
    reward: Reward | None = None
    max_turns: int = 20
    judge: AnswerJudge | None = None


class BaseSession(ABC):
    """Common base class of sessions with and without tools; a session is a subclass of `Session` or `TextSession`."""

    @abstractmethod
    def prompt(self) -> Prompt:
        """Return the messages that the episode opens with, and the tools that it offers, if any."""

    @abstractmethod
    async def grade(self) -> Rewards:
        """Return the verdict; for an episode that ended without an answer, the verdict on no answer.

        Raises:
            SandboxError: The connection is lost before the verdict is certain.
            EnvironmentFault: The server could not grade. This is never a reward of 0.
        """

    async def begin_turn(self, turn: AssistantTurn) -> None:  # noqa: B027 - optional: few sessions keep a transcript
        """Receive a whole turn, before its calls or its text are passed on one by one. Default: do nothing.

        Raises the errors of `Session.step`.
        """

    async def close(self) -> None:  # noqa: B027 - optional: many sessions have nothing to free
        """Free what the session uses. Idempotent, never raises."""


class Session(BaseSession):
    """One episode with tools. Calls are strictly serial.

    Attributes:
        takes_text: A turn without a call is passed to `reply`. If False, such a turn is a mistake of the policy.
    """

    takes_text: bool = False

    @abstractmethod
    async def step(self, call: ToolCall) -> Observation:
        """Execute one tool call. A refused or malformed call is an observation with `is_error`, not an exception.

        Raises:
            SandboxError: The sandbox died or does not answer; the session is unusable.
            EnvironmentFault: The server answered outside its protocol; the session is unusable.
        """

    async def reply(self, text: str) -> Observation:
        """Take a turn without a call and return the environment's answer, for sessions with `takes_text`.

        Raises the errors of `step`.
        """
        return Observation(text="Error: call one of the tools.", is_error=True)


class TextSession(BaseSession):
    """One episode without tools: each turn of the policy is a text, and the environment answers it."""

    @abstractmethod
    async def reply(self, text: str) -> Observation:
        """Take what the policy wrote and return the environment's answer. Raises the errors of `Session.step`."""


class Environment(ABC):
    """Base class of all environments, constructed with `(config, context)`.

    `data`, `splits`, `tasks` and `open` are required; the other methods have defaults.

    Attributes:
        grader: Name and version of the rules that judge answers, which is shown with each accuracy; empty if the
            environment has no versions of them.
    """

    grader: str = ""

    @abstractmethod
    def data(self) -> DataInfo:
        """Return where the tasks come from, and what they may be used for."""

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Return the names of the splits, in the usual order."""

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in a stable order.

        Raises:
            DataError: There is no such split, or its file is damaged.
        """

    @abstractmethod
    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session | TextSession:
        """Start an episode of exactly this task.

        Raises:
            SandboxError: The sandbox cannot be reached.
            EnvironmentFault: The server does not know the task or broke its protocol.
        """

    async def check_ready(self) -> None:  # noqa: B027 - optional: most environments need nothing
        """Check what sessions need, before sandboxes and engine are started. Default: nothing.

        Raises:
            FinqaError: No session can be opened, for example because a server that the options name does not answer.
        """

    async def close(self) -> None:  # noqa: B027 - optional: most environments have nothing to free
        """Free what sessions share. Idempotent, never raises. Default: nothing."""

    def sandbox_spec(self) -> SandboxSpec | None:
        """Return the sandbox that sessions need. Default: None, sessions run in this process."""
        return None

    def inputs(self) -> Mapping[str, str]:
        """Return digests, by name, of inputs other than the data that determine the prompts, for the run's manifest.

        More digests may be added after a session was opened. A resumed run with a different digest is refused.
        Default: empty.
        """
        return {}

    def spent(self) -> Mapping[str, float]:
        """Return what the environment used in this process beside sandboxes, such as that of a judge of answers.

        `prompt_tokens`, `completion_tokens` and `cost_usd` (US dollars) count in the limits of a run. It includes what
        was used for attempts that ended early, and may be read after `close`. Default: nothing.
        """
        return {}

    def opening(self, task: Task) -> Prompt | None:
        """Return the prompt of every session of this task, for components that count tokens without a session.

        Default: None, the prompt is known only once a session is open.
        """
        return None

    async def regrade(self, trajectory: Trajectory) -> Rewards | None:
        """Return the verdict of this environment with its options on a recorded attempt, without session and sandbox.

        Default: None; if the environment needs no sandbox, the attempt is then replayed in a session.

        Raises:
            ConfigError: Recorded attempts cannot be graded.
            DataError: The data has no right answer for the task.
            EnvironmentFault: The configured reward failed.
        """
        return None

    def right_answer(self, task: Task) -> str:
        """Return the right answer to a task as readable text, for the records of an evaluation.

        It never reaches a policy, a sandbox or a client of a server: no prompt, reply or explanation contains it.
        Default: empty, it is not known.
        """
        return ""

    def right_tables(self, task: Task) -> Sequence[str]:
        """Return the names of the tables that have the right answer, for the reasons why attempts are wrong.

        As the right answer, they never reach a policy. Default: none, they are not known.
        """
        return ()

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the next turn of a perfect policy in this conversation, for demonstrations and tests of rewards.

        Default: None, no solution is known.
        """
        return None

    def demonstrate_task(self, task: str, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the next turn of a perfect policy in an episode of the task with this id.

        Default: `demonstrate`, for environments whose conversation identifies the task.
        """
        return self.demonstrate(messages)

    def score_predictions(self, predictions: object) -> ScoredPredictions:
        """Score predictions in the form that the published evaluation of the data set reads.

        Args:
            predictions: The JSON value of the file, or the list of the rows of a JSONL file.

        Raises:
            NotImplementedError: The data set has no published evaluation that `finqa score` could use. This is the
                default.
            DataError: The predictions have another form; the message names the entry.
        """
        raise NotImplementedError(f"{type(self).__name__} has no published evaluation.")

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute the environment's own measures of a set of episodes. Pure.

        Args:
            trajectories: The episodes of an evaluation or of an iteration of training, including failed ones.

        Returns:
            Finite numbers by name, JSON-ready; a group of numbers may be a nested mapping. Default: empty.
        """
        return {}
