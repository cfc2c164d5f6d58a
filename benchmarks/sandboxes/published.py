"""The published script's scheduler, simulated: batches behind a barrier, questions by luck, stragglers cancelled.

Written from a description of what the Daytona guide's train.py does, not from its code. Where the description leaves a
choice, the faster one was taken: cancelled sockets are connected again side by side and with the next episode, and no
time is charged for vLLM's own batching. Not simulated is what only costs: the update, 500 synchronous SDK clients,
faults that end the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.sandboxes.policy import plan
from benchmarks.sandboxes.published_sandbox import PublishedEpisode, PublishedSandbox, generate
from finqa_cli.types import Task

CONNECTING_AT_ONCE = 200
DISPATCH_WAIT_S = 0.5
TICK_S = 1.0
STALL_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedIteration:
    """What one iteration came to.

    Attributes:
        groups: Exact groups; each episode in one was played under this iteration's policy.
        left_over: Episodes that found no group; the script trains them in a later iteration, under a later policy.
        cancelled: Episodes that were thrown away at the ends of the rounds.
        length_bias: Mean turns of the finished episodes by those of all that were started, less 1.
        engine_load: Requests that the engine served at once, on average.
    """

    seconds: float
    rounds: int
    groups: int
    episodes: int
    left_over: int
    cancelled: int
    zeroed: int
    length_bias: float
    engine_load: float


class PublishedScheduler:
    """One sandbox an episode, rounds of as many episodes as there are sandboxes."""

    def __init__(self, urls: Sequence[str], engine: SimulatedEngine, tasks: Sequence[Task], *, seed: int) -> None:
        self._sandboxes = [PublishedSandbox(number, url, tasks, seed) for number, url in enumerate(urls)]
        self._engine = engine
        self._finished: list[PublishedEpisode] = []
        self._cancelled: list[PublishedEpisode] = []

    async def connect(self) -> None:
        """All sandboxes."""
        places = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect(sandbox: PublishedSandbox) -> None:
            async with places:
                await sandbox.connect()

        await asyncio.gather(*map(connect, self._sandboxes))

    async def close(self) -> None:
        """All sockets."""
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes))

    async def iteration(self, *, group_size: int, target_groups: int, max_rounds: int) -> PublishedIteration:
        """Rounds until so many exact groups stand."""
        began, served = time.perf_counter(), self._engine.request_seconds
        rounds = groups = 0
        while rounds < max_rounds and groups < target_groups:
            await self._round()
            rounds += 1
            groups = exact_groups([episode.task.id for episode in self._finished], group_size)
        seconds = time.perf_counter() - began
        return PublishedIteration(
            seconds=seconds,
            rounds=rounds,
            groups=groups,
            episodes=len(self._finished),
            left_over=len(self._finished) - groups * group_size,
            cancelled=len(self._cancelled),
            zeroed=sum(episode.zeroed for episode in self._finished),
            length_bias=_mean_turns(self._finished) / _mean_turns([*self._finished, *self._cancelled]) - 1,
            engine_load=(self._engine.request_seconds - served) / seconds,
        )

    async def _round(self) -> None:
        """Plays until as many episodes are finished as there are sandboxes; a sandbox begins another one at once."""
        round_ = _Round(self._sandboxes, self._engine)
        try:
            await round_.play(len(self._sandboxes))
        finally:
            self._cancelled += await round_.cancel()
        self._finished += round_.finished


class _Round:
    def __init__(self, sandboxes: Sequence[PublishedSandbox], engine: SimulatedEngine) -> None:
        self._engine = engine
        self._idle = deque(sandboxes)
        self._ready: dict[PublishedSandbox, PublishedEpisode] = {}
        self._oldest = 0.0
        self._tasks: dict[asyncio.Task[PublishedEpisode], PublishedSandbox] = {}
        self._playing: dict[PublishedSandbox, PublishedEpisode] = {}
        self._count = len(sandboxes)
        self.finished: list[PublishedEpisode] = []

    async def play(self, target: int) -> None:
        """Until the target is reached or nothing has ended for too long."""
        last, counted = time.monotonic(), 0
        while len(self.finished) < target:
            while self._idle:
                sandbox = self._idle.popleft()
                self._tasks[asyncio.create_task(sandbox.begin())] = sandbox
            if self._due():
                await self._dispatch()
                continue
            ended = await self._collect()
            if len(self.finished) > counted:
                last, counted = time.monotonic(), len(self.finished)
            elif not ended and time.monotonic() - last > STALL_S:
                return

    async def cancel(self) -> list[PublishedEpisode]:
        """Throws away what is in progress and drops its sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for sandbox in self._playing))
        return list(self._playing.values())

    def _due(self) -> bool:
        full = len(self._ready) == self._count or not self._tasks
        return bool(self._ready) and (full or time.monotonic() - self._oldest >= DISPATCH_WAIT_S)

    async def _dispatch(self) -> None:
        """One batch: until its longest reply is there nothing else is looked at. Then a look at every idle socket."""
        batch, self._ready = self._ready, {}
        await asyncio.gather(*(generate(self._engine, episode) for episode in batch.values()))
        await asyncio.gather(*(sandbox.ping() for sandbox in batch))
        for sandbox, episode in batch.items():
            self._tasks[asyncio.create_task(_step(sandbox, episode))] = sandbox

    async def _collect(self) -> bool:
        """Waits a while for tasks; true when some have ended."""
        wait = TICK_S
        if self._ready:
            wait = max(0.0, self._oldest + DISPATCH_WAIT_S - time.monotonic())
        ended, _ = await asyncio.wait(self._tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            sandbox, episode = self._tasks.pop(task), task.result()
            if episode.reward is None:
                self._oldest = self._oldest if self._ready else time.monotonic()
                self._ready[sandbox] = self._playing[sandbox] = episode
            else:
                del self._playing[sandbox]
                self.finished.append(episode)
                self._idle.append(sandbox)
        return bool(ended)


async def _step(sandbox: PublishedSandbox, episode: PublishedEpisode) -> PublishedEpisode:
    await sandbox.step(episode)
    return episode


def exact_groups(questions: Sequence[str], size: int) -> int:
    """How many groups of exactly so many episodes of one question can be made."""
    counts: dict[str, int] = defaultdict(int)
    for question in questions:
        counts[question] += 1
    return sum(count // size for count in counts.values())


def _mean_turns(episodes: Sequence[PublishedEpisode]) -> float:
    """By plan, so that cancelled ones count with the length that they would have had."""
    planned = [plan(episode.seed, episode.messages[1].content).turns for episode in episodes]
    return sum(planned) / max(1, len(planned))
