"""Construction of rollout workers from settings: on the controller, and in the process of each worker."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from finqa_cli.contracts import ChatCodec, TokenEngine
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.rollout.breaker import Breaker
from finqa_cli.rollout.players import Players, PlayersRequest, Rules
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.runs.trajectory_records import trajectory_text
from finqa_cli.settings import Settings
from finqa_cli.types import Trajectory, TrajectoryRecord
from finqa_cli.wiring.build import make_codec, make_pool, make_provider, open_environment
from finqa_cli.wiring.sandbox_owners import GENERATION_LABEL, RUN_LABEL, WORKER_LABEL, owner_labels
from finqa_ray.workers.lending_engine import LendingEngine
from finqa_ray.workers.relayed_engine import ReportQueue
from finqa_ray.workers.remote_player import RemotePlayer
from finqa_ray.workers.remote_workers import Make, RemoteWorkers
from finqa_ray.workers.rollout_worker import ReportingBreaker, RolloutWorker, Scene
from finqa_ray.workers.worker_processes import WorkerProcesses
from finqa_ray.workers.worker_shares import CallSlot, share_out

log = structlog.get_logger(__name__)

TOKENIZER_FILES = (".json", ".txt", ".model", ".jinja")
"""Suffixes of the files of a model's folder that are sent to rollout workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Function that makes a `RolloutWorker` in its process. It is pickled.

    Attributes:
        settings: Settings of the run, with absolute paths and this worker's share of the concurrent starts.
        model: Model of the codec; empty for a chat engine.
        tokenizer: Content of the files of the model's folder, without weights, by name; empty for a hub id. The files
            are sent because other machines may not have access to the folder.
        labels: Labels of its sandboxes, which name the controller as their owner.
        sandboxes: Number of its sandboxes; see `make_pool`.
        slot: See `RolloutWorker`.
    """

    settings: Settings
    model: str
    tokenizer: Mapping[str, bytes]
    labels: Mapping[str, str]
    sandboxes: int
    slot: CallSlot

    def __call__(self) -> RolloutWorker:
        """Make the worker."""
        return RolloutWorker(self.build, slot=self.slot)

    async def build(self, queue: ReportQueue) -> Scene:
        """Make the worker's components with FINQA_HOME of this node, and end sandboxes of its earlier generations.

        Raises:
            FinqaError: Data, sandboxes or the codec are not available on this node.
        """
        settings = _on_this_node(self.settings)
        environment = open_environment(settings, NullReporter())
        if environment.sandbox_spec() is not None:
            earlier = {name: self.labels[name] for name in (RUN_LABEL, WORKER_LABEL)}
            await end_sandboxes(settings, earlier, except_for=self.labels[GENERATION_LABEL])
        pool = await make_pool(
            settings,
            environment,
            self.labels,
            self.sandboxes,
            NullReporter(),
            queue.event,
            breaker=ReportingBreaker(queue),
        )
        codec = await asyncio.to_thread(self._make_codec, settings) if self.model else None
        token_ids = settings.run.save_token_ids

        def record(played: Trajectory) -> TrajectoryRecord:
            facts = compare_with_truth(environment, played)
            return TrajectoryRecord(text=trajectory_text(played, token_ids=token_ids), facts=facts)

        return Scene(environment=environment, pool=pool, codec=codec, record=record)

    def _make_codec(self, settings: Settings) -> ChatCodec:
        if not self.tokenizer:
            return make_codec(settings, self.model)
        with tempfile.TemporaryDirectory(prefix="finqa-tokenizer-") as folder:
            for name, content in self.tokenizer.items():
                (Path(folder) / name).write_bytes(content)
            return make_codec(settings, folder)


class RemotePlayers(Players):
    """Lets rollout workers on the nodes of a cluster play the episodes."""

    pool: RemoteWorkers

    def __init__(self, request: PlayersRequest) -> None:
        """Make the rollout workers of the settings, not started.

        Raises:
            ConfigError: There are more workers than sandboxes.
            MissingDependencyError: Ray is not installed.
            AuthenticationError: The key of the sandboxes is missing.
        """
        settings, environment = request.settings, request.environment
        count = settings.cluster.rollout_workers
        if count > settings.pool.sandboxes:
            raise ConfigError(
                f"{count} rollout workers cannot share {settings.pool.sandboxes} sandboxes.",
                remedy=f"--set cluster.rollout_workers={settings.pool.sandboxes}",
            )
        shares = share_out(request.size, min(count, request.size))
        processes = find_processes(settings.cluster.address, len(shares))
        sandboxed = environment.sandbox_spec() is not None
        if sandboxed:
            make_provider(settings).check_key()
        engine = request.engine
        self.engine = LendingEngine(engine, count) if isinstance(engine, TokenEngine) else engine
        make, end_left = _worker_makers(request, shares)
        self.pool = RemoteWorkers(
            processes,
            make,
            self.engine,
            shares=shares,
            sandboxed=sandboxed,
            digest=environment.data().digest,
            breaker=Breaker(request.size, settings.pool.breaker_share),
            engine_breaker=request.engine_breaker,
            restarted=request.restarted,
            on_lost=end_left if sandboxed else None,
            on_event=request.on_event,
        )

    def player(self, rules: Rules, played: Callable[[Trajectory], None]) -> RemotePlayer:
        """Return a player whose attempts the workers play; `played` is called with the result of each attempt."""
        longest = self.engine.max_context if isinstance(self.engine, TokenEngine) else 0
        return RemotePlayer(self.pool, self.engine.seat, replace(rules, max_context=longest), played)

    def inputs(self) -> Mapping[str, str]:
        """Return digests that the environments of the workers reported; see `Environment.inputs`."""
        return self.pool.inputs

    def spent(self) -> Mapping[str, float]:
        """Return what the environments of the workers used; see `Environment.spent`."""
        return self.pool.spent()

    def check_engine(self) -> None:
        """Refuse a started engine that cannot be used with rollout workers.

        Raises:
            ConfigError: The engine runs in lockstep.
        """
        if self.engine.lockstep:
            raise ConfigError(
                "An engine in lockstep waits for the episodes of one process, and rollout workers are several.",
                remedy="--set engine.options.lockstep=false",
            )


def _worker_makers(
    request: PlayersRequest, shares: Sequence[int]
) -> tuple[Make, Callable[[int, int], Awaitable[None]]]:
    """Return functions of number and generation: one makes a worker, one ends the sandboxes that a lost one left."""
    sent = _portable(request.settings, len(shares))
    model = request.policy.model if isinstance(request.engine, TokenEngine) else ""
    tokenizer = _read_tokenizer(Path(model)) if model else {}

    def labels(number: int, generation: int) -> dict[str, str]:
        return {**owner_labels(request.run_id), WORKER_LABEL: str(number), GENERATION_LABEL: str(generation)}

    def make(number: int, generation: int) -> WorkerSetup:
        return WorkerSetup(
            settings=sent,
            model=model,
            tokenizer=tokenizer,
            labels=labels(number, generation),
            sandboxes=shares[number],
            slot=CallSlot(number=number, workers=len(shares)),
        )

    async def end_left(number: int, generation: int) -> None:
        wanted = labels(number, generation)
        names = {name: wanted[name] for name in (RUN_LABEL, WORKER_LABEL, GENERATION_LABEL)}
        await end_sandboxes(request.settings, names)

    return make, end_left


def find_processes(address: str, count: int) -> WorkerProcesses:
    """Return the nodes for `count` rollout workers of the cluster at an address, not opened.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError(
            f"{count} rollout workers (cluster.rollout_workers) need ray, which is not installed.",
            remedy="pip install 'finqa[ray]'",
        )
    from finqa_ray.workers.ray_workers import RayWorkers

    return RayWorkers(address, count)


async def end_sandboxes(settings: Settings, labels: Mapping[str, str], *, except_for: str = "") -> None:
    """End the sandboxes with all these labels, except those of the generation `except_for`.

    Raises:
        FinqaError: The provider cannot list or end them.
    """
    provider = make_provider(settings)
    try:
        found = await provider.list(labels)
        left = [sandbox for sandbox in found if sandbox.labels.get(GENERATION_LABEL) != except_for]
        if left:
            # Log: They are found by their labels.
            log.info("ending sandboxes of a lost rollout worker", sandboxes=len(left))
        await asyncio.gather(*(provider.reap(sandbox.id) for sandbox in left))
    finally:
        await provider.close()


def _read_tokenizer(model: Path) -> dict[str, bytes]:
    """Return the content of the tokenizer and configuration files of a model's folder; empty for a hub id."""
    if not model.is_dir():
        return {}
    paths = (path for path in sorted(model.iterdir()) if path.is_file() and path.suffix in TOKENIZER_FILES)
    return {path.name: path.read_bytes() for path in paths}


def _on_this_node(settings: Settings) -> Settings:
    """Return settings with FINQA_HOME of this machine."""
    home = Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser()
    return settings.model_copy(update={"data": settings.data.model_copy(update={"home": home})})


def _portable(settings: Settings, workers: int) -> Settings:
    """Return settings for the workers, with an absolute data path and each worker's share of the concurrent starts."""
    path = settings.data.path
    return settings.model_copy(
        update={
            "data": settings.data.model_copy(update={"path": path.absolute() if path is not None else None}),
            "pool": settings.pool.model_copy(
                update={"max_concurrent_create": max(1, settings.pool.max_concurrent_create // workers)}
            ),
        }
    )
