"""One simulated run by the product's own trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.async_training.simulation import (
    SimulatedCodec,
    SimulatedEngine,
    SimulatedEnvironment,
    SimulatedLearner,
)
from finqa_cli.rollout.pool import Pool
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings
from finqa_cli.training.rl.trainer import Trainer
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.build import make_optimizer
from finqa_cli.wiring.stage import Stage


def simulated_settings(**train: Any) -> Settings:
    """Iterations of eight groups of four episodes on 16 places, and no evaluation; `train` replaces settings of it."""
    return Settings.model_validate(
        {
            "train": {"group_size": 4, "target_groups_per_iter": 0, "max_rollout_rounds": 1, "seed": 1, **train},
            "pool": {"sandboxes": 32, "max_concurrent_play": 16, "max_play_retries": 0},
        }
    )


async def train_simulated(
    settings: Settings,
    run: Path,
    engine: SimulatedEngine,
    learner: SimulatedLearner,
    *,
    environment: SimulatedEnvironment | None = None,
    checkpoint: Checkpoint | None = None,
    listen: Callable[[Trainer], None] = lambda trainer: None,
) -> list[dict[str, Any]]:
    """Trains, and gives the metrics of the iterations.

    Args:
        settings: Of the run.
        run: Its folder, made again.
        engine: Generates.
        learner: Takes the time of updates.
        environment: Default: one of 64 tasks.
        checkpoint: Checkpoint of another simulated run to continue from; None starts from the beginning.
        listen: Gets the trainer before it runs.
    """
    environment = environment or SimulatedEnvironment()
    policy = PolicyVersion(number=checkpoint.state["serving_version"] if checkpoint else 0, model="simulated")
    await engine.load(policy)
    reporter = NullReporter()
    with RunFolder.create(run, command="train", settings={}, save_token_ids=False) as folder:
        context = RunContext(
            settings=settings,
            folder=folder,
            tracking=Tracking(folder, [], reporter),
            reporter=reporter,
            stopper=Stopper(reporter),
        )
        parts = Stage(
            environment=environment,
            pool=Pool(),
            engine=engine,
            codec=SimulatedCodec(),
            policy=policy,
            data=environment.data(),
        )
        trainer = Trainer(context, parts, learner, make_optimizer(settings), environment.tasks("train"), held_out=())
        if checkpoint is not None:
            await trainer.resume(checkpoint)
        listen(trainer)
        await trainer.run()
    return [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "train"]
