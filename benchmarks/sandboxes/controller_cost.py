"""What an episode costs the controller alone: which attempts start, groups, credit, and the record.

The episodes are played by a stand-in that returns a finished trajectory at once, as a rollout worker would send it, so
that everything which is counted is the product's own `Stream`, `Collection`, `TaskWalk` and `RunFolder`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finqa_cli.contracts import ChatEngine, WorkerProcess, WorkerProcesses
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.breaker import Breaker, EngineBreaker
from finqa_cli.rollout.episode import Limits, TurnListener
from finqa_cli.rollout.groups import Collection
from finqa_cli.rollout.pool import PoolStats
from finqa_cli.rollout.remote_workers import RemoteWorkers
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import streaming
from finqa_cli.rollout.worker_messages import Play, Played, Reports, Rules
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Message,
    Observation,
    Rewards,
    Sampling,
    Status,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from finqa_cli.wiring.build import make_optimizer

BATCH, DIGEST = 50, "sha256:0"
TURNS, PROMPT_IDS, COMPLETION_IDS = 5, 400, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCost:
    """CPU seconds of one episode.

    Attributes:
        bookkeeping_s: In the thread of the event loop: which attempt is next, groups and credit.
        record_s: In all threads, beyond that: the record as JSON on disk.
        receive_s: For an attempt of a rollout worker beyond that: it is placed, sent, and its trajectory is received.
            Without the calls themselves, which have many attempts each.
        receive_bytes_s: To read one episode out of a batch of 50, were its record and token ids bytes that are passed
            on unread.
    """

    bookkeeping_s: float
    record_s: float
    receive_s: float
    receive_bytes_s: float


class FinishedEpisodes(Player):
    """Returns a trajectory with the attempt's id at once."""

    def __init__(self, ids: Callable[[int], tuple[int, ...]] = lambda count: tuple(range(count))) -> None:
        """Make the turns of all of them; `ids` gives so many token ids."""
        self._turns = tuple(self._turn(ids) for _ in range(TURNS))

    def _turn(self, ids: Callable[[int], tuple[int, ...]]) -> Turn:
        return Turn(
            prompt_ids=ids(PROMPT_IDS),
            completion_ids=ids(COMPLETION_IDS),
            logprobs=tuple(-1e-6 * number for number in ids(COMPLETION_IDS)),
            text="The question is about one company, so its tables come first. " * 5,
            tool_call=ToolCall(name="get_descriptions", arguments={"company_name": "company"}),
            observation=Observation(text="a table of the company, with its years and values; " * 20),
        )

    def seat(self) -> Seat:
        """A seat of an engine without seats."""
        return Seat(nullcontext)

    async def play(self, attempt: Attempt, seat: Seat, listener: TurnListener | None = None) -> Trajectory:
        """Nothing is played."""
        await asyncio.sleep(0)
        return Trajectory(
            id=attempt.id,
            task=attempt.task,
            member=attempt.member,
            seed=attempt.seed,
            status=Status.COMPLETED,
            turns=self._turns,
            messages=(Message(role="user", content=attempt.task.prompt),),
            rewards=Rewards(total=float(attempt.seed % 2)),
        )


async def controller_cost(home: Path, episodes: int = 6000, at_once: int = 1000) -> ControllerCost:
    """Measures so many episodes without a record, and as many with one."""
    alone, recorded = [await _measure(home, episodes, at_once, records=records) for records in (False, True)]
    batch = [await _trajectory(number) for number in range(BATCH)]
    summaries = [
        (each.id, str(each.status), each.reward, json.dumps(trajectory_record(each)).encode(), pickle.dumps(each.turns))
        for each in batch
    ]
    return ControllerCost(
        bookkeeping_s=alone,
        record_s=max(0.0, recorded - alone),
        receive_s=await _through_workers(episodes // 2),
        receive_bytes_s=_read_s(summaries),
    )


class UnusedEngine(ChatEngine):
    """Is never asked."""

    async def start(self) -> None:
        """Nothing to start."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """No worker asks."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


class FinishedWorker(WorkerProcess):
    """Returns a trajectory for each attempt that it gets. `own_s` is the CPU of what a real one does elsewhere."""

    def __init__(self, turns: Trajectory) -> None:
        self._turns = pickle.dumps(turns)
        self._waiting: list[Play] = []
        self._news = asyncio.Event()
        self.own_s = 0.0

    async def call(self, method: str, *arguments: Any) -> Any:
        """As `RolloutWorker`; what passes is pickled."""
        if method == "start":
            return DIGEST
        if method == "ready":
            await asyncio.Event().wait()
        if method == "deliver":
            sent = pickle.dumps(arguments[1], pickle.HIGHEST_PROTOCOL)
            cpu = time.thread_time()
            self._waiting += (delivery for delivery in pickle.loads(sent) if isinstance(delivery, Play))
            self.own_s += time.thread_time() - cpu
            self._news.set()
        if method != "collect":
            return None
        await self._news.wait()
        self._news.clear()
        cpu = time.thread_time()
        played, self._waiting = self._waiting, []
        reports = Reports(
            generation=arguments[0],
            reports=tuple(Played(ticket=play.ticket, trajectory=self._play(play)) for play in played),
            turned=True,
            answered=frozenset((0,)),
            stats=PoolStats(),
            inputs={},
        )
        found = pickle.dumps(reports, pickle.HIGHEST_PROTOCOL)
        self.own_s += time.thread_time() - cpu
        return pickle.loads(found)

    def _play(self, play: Play) -> Trajectory:
        trajectory: Trajectory = pickle.loads(self._turns)  # objects of its own: pickle sends what is the same once
        attempt = play.attempt
        return replace(trajectory, id=attempt.id, task=attempt.task, member=attempt.member, seed=attempt.seed)

    def kill(self) -> None:
        """Nothing runs."""


class FinishedWorkers(WorkerProcesses):
    """So many of them, in this process."""

    def __init__(self, turns: Trajectory) -> None:
        self._turns = turns
        self.started: list[FinishedWorker] = []

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def start(self, number: int, make: Callable[[], object]) -> WorkerProcess:
        """Starts one at once."""
        self.started.append(FinishedWorker(self._turns))
        return self.started[-1]

    async def close(self) -> None:
        """Nothing runs."""


async def _through_workers(episodes: int, workers: int = 4, at_once: int = 1000) -> float:
    """CPU seconds of one attempt in `RemoteWorkers` and in pickle, on the controller's side."""
    processes = FinishedWorkers(await _trajectory(0))
    remote = RemoteWorkers(
        processes,
        lambda number, generation: object,
        UnusedEngine(),
        shares=[at_once // workers] * workers,
        sandboxed=False,
        digest=DIGEST,
        breaker=Breaker(at_once, 1.0),
        engine_breaker=EngineBreaker(at_once),
    )
    rules = Rules(limits=Limits(), sampling=Sampling(), max_retries=0)
    places = asyncio.Semaphore(at_once)

    async def play(number: int) -> None:
        async with places:
            await remote.play(Attempt(id=f"e{number}", task=_task(number), member=0, seed=number), rules)

    await remote.start()
    await remote.ready()
    cpu = time.process_time()
    await asyncio.gather(*map(play, range(episodes)))
    spent = time.process_time() - cpu - sum(one.own_s for one in processes.started)
    await remote.close()
    return spent / episodes


async def _trajectory(number: int) -> Trajectory:
    """A trajectory whose token ids are its own: pickle sends what is the same only once."""
    rng = random.Random(number)
    player = FinishedEpisodes(lambda count: tuple(rng.randrange(150_000) for _ in range(count)))
    attempt = Attempt(id=f"train/{number}", task=_task(number), member=0, seed=number)
    return await player.play(attempt, player.seat())


def _read_s(batch: Sequence[object]) -> float:
    """CPU seconds of reading one of a batch, on average."""
    sent = [pickle.dumps(batch, pickle.HIGHEST_PROTOCOL) for _ in range(20)]
    cpu = time.process_time()
    for each in sent:
        pickle.loads(each)
    return (time.process_time() - cpu) / (len(sent) * len(batch))


def _task(number: int) -> Task:
    return Task(id=f"q{number}", prompt=f"question {number}", split="train", cluster=f"c{number // 20}")


async def _measure(home: Path, episodes: int, at_once: int, *, records: bool) -> float:
    train = {"group_size": 6, "target_groups_per_iter": 0, "max_rollout_rounds": -(-episodes // at_once)}
    pool = {"sandboxes": at_once, "max_concurrent_play": at_once}
    settings = Settings.model_validate({"pool": pool, "train": train})
    tasks = [_task(number) for number in range(2000)]
    count = 0
    path = home / f"controller-{time.time_ns()}"
    with RunFolder.create(path, command="benchmark", settings={}, save_token_ids=False) as folder:

        async def heard(trajectory: Trajectory) -> None:
            nonlocal count
            count += 1
            if records:
                await asyncio.wrap_future(folder.trajectory(trajectory, phase="train", iteration=1))

        cpu = time.process_time()
        async with streaming(FinishedEpisodes(), concurrency=at_once) as stream:
            walk = TaskWalk(tasks, seed=0)
            optimizer = make_optimizer(settings)
            collection = Collection(stream, walk, optimizer, settings, iteration=1, on_trajectory=heard)
            await collection.collected()
        return (time.process_time() - cpu) / count
