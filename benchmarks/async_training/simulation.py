"""A run whose parts only take time: the product's trainer between a simulated engine, environment and learner.

What an episode is worth and how long it is comes from its seed, so that two runs play the same; how long a turn and an
update take is given, so that rollouts and updates can be made to balance.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from finqa_cli.contracts import ChatCodec, Environment, Learner, Sandbox, Session, TokenEngine
from finqa_cli.types import (
    AssistantTurn,
    Batch,
    Completion,
    DataInfo,
    FloatRow,
    GenerateRequest,
    Loss,
    Message,
    Observation,
    PolicyVersion,
    Prompt,
    Rewards,
    Sample,
    Task,
    ToolCall,
    UpdateReport,
)

PROMPT = Prompt(messages=(Message(role="user", content="What is it?"),), tools=())
LONGEST = 12


class SimulatedEnvironment(Environment):
    """Episodes of 1 to 12 turns, most of them short; half of them are right."""

    def __init__(self, tasks: int = 64) -> None:
        self._tasks = [
            Task(id=f"q{number}", prompt="What is it?", split="train", cluster=f"c{number}") for number in range(tasks)
        ]

    def data(self) -> DataInfo:
        """Made up."""
        return DataInfo(name="simulated", digest="sha256:0")

    def splits(self) -> Sequence[str]:
        """Only `train`."""
        return ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        """All of them."""
        return self._tasks

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> SimulatedSession:
        """At once."""
        return SimulatedSession(seed)


class SimulatedSession(Session):
    """Over after as many calls as its seed says."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"session {seed}")
        self._left = min(LONGEST, 1 + int(dice.expovariate(1 / 2.5)))
        self._reward = float(dice.random() < 0.5)

    def prompt(self) -> Prompt:
        """The same for all."""
        return PROMPT

    async def step(self, call: ToolCall) -> Observation:
        """Takes no time: the engine's share is what overlaps with updates."""
        self._left -= 1
        return Observation(text="go on", done=not self._left)

    async def grade(self) -> Rewards:
        """By the seed."""
        return Rewards(total=self._reward)


class SimulatedCodec(ChatCodec):
    """Two ids of prompt, one of each reply; every completion is a call."""

    stop_ids = (1,)

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[2] ids."""
        return (5, 6)

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[1] id."""
        return (7,)

    def user_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[1] id."""
        return (7,)

    def assistant(self, message: Message) -> tuple[int, ...]:
        """[2] ids."""
        return (9, 1)

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """A call."""
        return AssistantTurn(text="", tool_call=ToolCall(name="go", arguments={}))


class SimulatedEngine(TokenEngine):
    """Each request takes `turn_s`; swaps while requests are in progress, which end under their own version."""

    max_context = 4096

    def __init__(self, turn_s: float) -> None:
        self._turn_s = turn_s
        self.version = 0
        self.requests = 0

    async def start(self) -> None:
        """Nothing to do."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Two ids."""
        version = self.version
        self.requests += 1
        await asyncio.sleep(self._turn_s)
        return Completion(token_ids=(9, 1), logprobs=(-0.7, -0.1), stop="stop", policy_version=version)

    async def load(self, policy: PolicyVersion) -> None:
        """At once."""
        self.version = policy.number

    async def close(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class SimulatedLearner(Learner):
    """An update takes `update_s` of another user's processor.

    Attributes:
        spans: When each update began and ended, on the monotonic clock.
        batches: What each was made of.
    """

    update_s: float
    spans: list[tuple[float, float]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def start(self) -> None:
        """Nothing to do."""

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """Waits."""
        began = time.monotonic()
        time.sleep(self.update_s)
        self.spans.append((began, time.monotonic()))
        self.batches.append(batch)
        tokens = sum(len(sample.token_ids) for sample in batch.samples)
        return UpdateReport(
            loss=0.0,
            grad_norm=0.0,
            learning_rate=0.0,
            tokens=tokens,
            loss_tokens=batch.loss_tokens,
            seconds=self.update_s,
        )

    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Those of the sampler."""
        return tuple(sample.logprobs for sample in samples)

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """An empty folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return PolicyVersion(number=number, model="simulated", adapter=folder)

    def save(self, folder: Path) -> None:
        """An empty folder."""
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, folder: Path) -> None:
        """Nothing to do."""
