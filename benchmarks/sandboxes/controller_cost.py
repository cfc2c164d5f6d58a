"""What an episode costs the controller alone: which attempts start, groups, credit, and the record.

The episodes are played by a stand-in that returns a finished trajectory at once, as a rollout worker would send it, so
that everything which is counted is the product's own `Stream`, `Collection`, `TaskWalk` and `RunFolder`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import ChatEngine
from finqa_cli.rollout.attempts import Attempt, AttemptPlayer, Player, Seat
from finqa_cli.rollout.breaker import Breaker, EngineBreaker
from finqa_cli.rollout.episode import Limits, TurnListener
from finqa_cli.rollout.groups import Collection
from finqa_cli.rollout.players import Rules
from finqa_cli.rollout.pool import PoolStats
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import streaming
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.spending import Meter
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import trajectory_text
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
    TrajectoryRecord,
    Turn,
)
from finqa_cli.wiring.build import make_optimizer
from finqa_cli.wiring.stage import EpisodeCount
from finqa_ray.workers.remote_player import RemotePlayer
from finqa_ray.workers.remote_workers import RemoteWorkers
from finqa_ray.workers.worker_messages import Play, Played, Reports, pack, pack_turns, unpack
from finqa_ray.workers.worker_processes import WorkerProcess, WorkerProcesses

BATCH, DIGEST = 50, "sha256:0"
FACTS = {"truth": "12.5%", "values": {"answer": [0.125], "truth": [0.125]}}
TURNS, PROMPT_IDS, COMPLETION_IDS = 5, 400, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCost:
    """CPU seconds of one episode.

    Attributes:
        bookkeeping_s: In the thread of the event loop: which attempt is next, groups and credit.
        record_s: In all threads, beyond that: the record as JSON on disk.
        receive_s: For an attempt of a rollout worker, beyond the bookkeeping and in all threads: it is placed and sent,
            its trajectory is received, and the record that the worker made is on disk. Without the calls themselves,
            which have many attempts each.
        samples_s: Beyond that, where it is trained on: its tokens as samples.
    """

    bookkeeping_s: float
    record_s: float
    receive_s: float
    samples_s: float


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
        return self.finished(attempt)

    def finished(self, attempt: Attempt) -> Trajectory:
        """The trajectory of an attempt."""
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
    """Measures so many episodes without a record, with one, and of rollout workers."""
    player = FinishedEpisodes()
    alone = await _measure(home, player, episodes, at_once, records=False)
    recorded = await _measure(home, player, episodes, at_once, records=True)
    played = [unpack(pack(pack_turns(_trajectory(_task(number), number)))) for number in range(BATCH)]
    cpu = time.process_time()
    for trajectory in played:
        trajectory_samples(trajectory, 1.0)
    samples_s = (time.process_time() - cpu) / BATCH
    return ControllerCost(
        bookkeeping_s=alone,
        record_s=max(0.0, recorded - alone),
        receive_s=await _through_workers(home, episodes, at_once) - alone,
        samples_s=samples_s,
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
    """Has another process make a trajectory with its record for each attempt that it gets."""

    def __init__(self, elsewhere: Executor) -> None:
        self._elsewhere = elsewhere
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()

    async def call(self, method: str, *arguments: Any) -> Any:
        """As `RolloutWorker`."""
        if method == "start":
            return DIGEST
        if method == "ready":
            await asyncio.Event().wait()
        if method == "deliver":
            self._waiting.append(arguments[1])
            self._news.set()
        if method != "collect":
            return None
        await self._news.wait()
        self._news.clear()
        taken, self._waiting = self._waiting, []
        return await asyncio.get_running_loop().run_in_executor(self._elsewhere, _finish, arguments[0], taken)

    def kill(self) -> None:
        """Nothing runs."""


def _finish(generation: int, deliveries: Sequence[bytes]) -> bytes:
    """Return the packed reports on packed deliveries."""
    plays = [one for packed in deliveries for one in unpack(packed) if isinstance(one, Play)]
    return pack(
        Reports(
            generation=generation,
            reports=tuple(Played(ticket=play.ticket, trajectory=_finished(play.attempt)) for play in plays),
            turned=True,
            answered=frozenset((0,)),
            stats=PoolStats(),
            inputs={},
        )
    )


def _finished(attempt: Attempt) -> Trajectory:
    trajectory = replace(_trajectory(attempt.task, attempt.seed), id=attempt.id, member=attempt.member)
    record = TrajectoryRecord(text=trajectory_text(trajectory), facts=FACTS)
    return pack_turns(replace(trajectory, record=record))


class FinishedWorkers(WorkerProcesses):
    """So many of them."""

    def __init__(self, elsewhere: Executor) -> None:
        self._elsewhere = elsewhere

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def start(self, number: int, make: Callable[[], object]) -> WorkerProcess:
        """Starts one at once."""
        return FinishedWorker(self._elsewhere)

    async def close(self) -> None:
        """Nothing runs."""


async def _through_workers(home: Path, episodes: int, at_once: int, workers: int = 4) -> float:
    """CPU seconds of one attempt of rollout workers, on the controller's side."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        elsewhere.submit(_finish, 0, ()).result()  # it starts
        return await _through(FinishedWorkers(elsewhere), home, episodes, at_once, workers)


async def _through(processes: WorkerProcesses, home: Path, episodes: int, at_once: int, workers: int) -> float:
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
    meter = Meter(Settings().run, gpus=0, stop=lambda reason: None, tell=lambda line: None)
    player = RemotePlayer(remote, nullcontext, rules, meter.add)
    await remote.start()
    await remote.ready()
    spent = await _measure(home, player, episodes, at_once, records=True)
    await remote.close()
    assert meter.spending.tokens == meter.spending.episodes * TURNS * (PROMPT_IDS + COMPLETION_IDS)
    return spent


def _trajectory(task: Task, seed: int) -> Trajectory:
    """A trajectory whose token ids are its own: pickle sends what is the same only once."""
    rng = random.Random(seed)
    made = FinishedEpisodes(lambda count: tuple(rng.choices(range(150_000), k=count)))
    return made.finished(Attempt(id=f"train/{seed}", task=task, member=0, seed=seed))


def _task(number: int) -> Task:
    return Task(id=f"q{number}", prompt=f"question {number}", split="train", cluster=f"c{number // 20}")


async def _measure(home: Path, player: AttemptPlayer, episodes: int, at_once: int, *, records: bool) -> float:
    """CPU seconds of one episode of an iteration, with what `Trainer` does with its record."""
    train = {"group_size": 6, "target_groups_per_iter": 0, "max_rollout_rounds": -(-episodes // at_once)}
    pool = {"sandboxes": at_once, "max_concurrent_play": at_once}
    settings = Settings.model_validate({"pool": pool, "train": train})
    tasks = [_task(number) for number in range(2000)]
    count = 0
    path = home / f"controller-{time.time_ns()}"
    shown = EpisodeCount(NullReporter(), "rollout", None)
    with RunFolder.create(path, command="benchmark", settings={}, save_token_ids=False) as folder:
        tracking = Tracking(folder, (), NullReporter())

        async def heard(trajectory: Trajectory) -> None:
            nonlocal count
            count += 1
            if records:
                facts = {"phase": "train", "iteration": 1, **(trajectory.record.facts if trajectory.record else FACTS)}
                await asyncio.wrap_future(folder.trajectory(trajectory, **facts))
                tracking.trajectory(trajectory, facts)
                shown.add(trajectory)

        cpu = time.process_time()
        async with streaming(player, concurrency=at_once) as stream:
            walk = TaskWalk(tasks, seed=0)
            optimizer = make_optimizer(settings)
            collection = Collection(stream, walk, optimizer, settings, iteration=1, on_trajectory=heard)
            await collection.collected()
        return (time.process_time() - cpu) / count
