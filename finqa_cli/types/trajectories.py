"""The immutable trajectory of an attempt, its parts, and the group of the attempts at one task."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, overload

from finqa_cli.types.tasks import Message, Observation, Rewards, Task, ToolCall, ToolSpec
from finqa_cli.types.token_use import TokenUse, use_of


class Status(StrEnum):
    """Why an attempt ended. The first five are caused by the policy and are scored; the last three are faults.

    Attributes:
        COMPLETED: The policy answered, or the environment ended the episode.
        MAX_TURNS: The limit of turns was reached.
        MAX_TOKENS: The conversation left no room for another turn, or the episode reached its limit of tokens or cost.
        TIMEOUT: The time limit of the episode was reached.
        PARSE_ERROR: Several turns in a row contained no readable tool call.
        SANDBOX_ERROR: The sandbox failed.
        ENGINE_ERROR: The engine failed.
        ENVIRONMENT_ERROR: The environment or the reward failed.
    """

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    TIMEOUT = "timeout"
    PARSE_ERROR = "parse_error"
    SANDBOX_ERROR = "sandbox_error"
    ENGINE_ERROR = "engine_error"
    ENVIRONMENT_ERROR = "environment_error"

    @property
    def is_fault(self) -> bool:
        """True for infrastructure faults: never scored, never used for training."""
        return self in (Status.SANDBOX_ERROR, Status.ENGINE_ERROR, Status.ENVIRONMENT_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call and its reply.

    Attributes:
        call: The call.
        observation: The reply; None if the episode ended before the call was carried out.
    """

    call: ToolCall
    observation: Observation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One generation and the reply to it.

    Attributes:
        prompt_ids: [Lp] ids that were appended before the completion: in turn 0 the whole opening prompt, later the
            encoded reply. The prompt and completion ids of the turns, concatenated, are the episode's sequence; a turn
            that restarts begins another sequence.
        restarts: The chat template rewrote earlier turns, so `prompt_ids` is the whole prompt and a new sequence begins
            here.
        completion_ids: [Lc] ids exactly as sampled, stop token included when it was sampled.
        logprobs: [Lc] log-probability of each sampled id under the sampling distribution (nats).
        stop: `stop` (a stop token was sampled) or `length` (the token limit cut it).
        policy_version: Version that generated it.
        seconds: Wall-clock seconds of generation and tool together.
        text: Decoded completion.
        words: The part of the text before the call, reasoning included; empty without a call.
        tool_call: The call, or None if no call could be parsed.
        parse_error: Why no call could be parsed; empty otherwise.
        observation: The reply; None when the episode ended before there was one.
        further_steps: The calls after the first, with their replies, where the turn has several.
    """

    prompt_ids: tuple[int, ...] = ()
    restarts: bool = False
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop: str = "stop"
    policy_version: int = 0
    seconds: float = 0.0
    text: str = ""
    words: str = ""
    tool_call: ToolCall | None = None
    parse_error: str = ""
    observation: Observation | None = None
    further_steps: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All calls of the turn with their replies, in their order."""
        if self.tool_call is None:
            return ()
        return (Step(call=self.tool_call, observation=self.observation), *self.further_steps)


class PackedTurns(Sequence[Turn]):
    """The turns of an attempt as a rollout worker sent them: pickled until the first access, then a tuple.

    Attributes:
        tokens: Tokens of all turns; see `Trajectory.tokens`.
    """

    __slots__ = ("_count", "_packed", "_read", "tokens")

    def __init__(self, packed: bytes, count: int, tokens: int) -> None:
        """Keep the turns packed.

        Args:
            packed: Pickled tuple of turns, from a trusted process.
            count: Number of turns.
            tokens: Tokens of all turns.
        """
        self._packed, self._count, self.tokens = packed, count, tokens
        self._read: tuple[Turn, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        return self._turns()[index]

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns())

    def __eq__(self, other: object) -> bool:
        return self._turns() == tuple(other) if isinstance(other, (tuple, PackedTurns)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like turns with calls, which contain mappings

    def __repr__(self) -> str:
        return repr(self._turns())

    def _turns(self) -> tuple[Turn, ...]:
        if self._read is None:
            self._read, self._packed = pickle.loads(self._packed), b""
        return self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """The record of an attempt, made by the rollout worker that played it, because the controller is a bottleneck.

    Attributes:
        text: JSON object in ASCII; see `runs.trajectory_records`.
        facts: What `runs.right_answers` adds to it.
    """

    text: bytes
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished attempt at a task.

    Attributes:
        id: Unique in the run: `train/<iteration>/<group>/<task id>/<member>`, with `-again` when a faulted member was
            played once more; `eval/...` likewise.
        task: The task that was attempted.
        member: Place in its group, 0..G-1.
        seed: Seed of all random choices of the attempt.
        messages: The opening messages; the turns continue them.
        tools: The tools that were offered.
        several_calls: One turn could call several tools.
        status: Why it ended.
        turns: A tuple, or `PackedTurns` of a rollout worker.
        error: One line about the fault or limit; empty on completion.
        rewards: None when the attempt was never graded (a fault).
        retries: Earlier attempts at the same member that ended in a fault.
        recoveries: Number of times that the episode continued in a new session after its connection was lost.
        seconds: Wall-clock seconds of the last attempt.
        metadata: Further JSON values; `usage` contains the figures of `Engine.usage`.
        record: Its record if a rollout worker made it; if None, the record is made when it is written.
    """

    id: str
    task: Task
    member: int
    seed: int
    status: Status
    turns: Sequence[Turn]
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    several_calls: bool = False
    rewards: Rewards | None = None
    error: str = ""
    retries: int = 0
    recoveries: int = 0
    seconds: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    record: TrajectoryRecord | None = field(default=None, compare=False, repr=False)

    @property
    def reward(self) -> float | None:
        """The total reward, or None when the attempt was never graded."""
        return None if self.rewards is None else self.rewards.total

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens of all turns, opening prompt included; 0 without token ids."""
        if isinstance(self.turns, PackedTurns):
            return self.turns.tokens
        return sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        """Sampled tokens of all turns; 0 without token ids."""
        return sum(len(turn.completion_ids) for turn in self.turns)

    @property
    def use(self) -> TokenUse | None:
        """Tokens and cost of the attempt; None if they are unknown."""
        return use_of(((len(turn.prompt_ids), len(turn.completion_ids)) for turn in self.turns), self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The G attempts at one task. Faulted members may be among them; optimizers exclude them."""

    task: Task
    trajectories: tuple[Trajectory, ...]
