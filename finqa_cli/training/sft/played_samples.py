"""What a policy says to held-out questions while it learns: played as an evaluation plays, greedily."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from finqa_cli.contracts import Learner, Sleeper, TokenEngine
from finqa_cli.errors import DataError, ThresholdError
from finqa_cli.evaluation.evaluate import evaluate_tasks
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import JsonlWriter
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.statistics import evaluation_metrics, read_outcome
from finqa_cli.types import PolicyVersion, Task, Trajectory
from finqa_cli.wiring.build import open_environment
from finqa_cli.wiring.stage import Stage, stage

USUAL_SAMPLES = 16
"""Questions that are asked where nobody says how many."""

SAMPLES = "valid_samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRates:
    """What the answers to held-out questions come to; faults are in no rate, and without a graded answer all are None.

    Attributes:
        questions: Answers that were graded.
        faults: Attempts that infrastructure ended.
        parse_rate: Share of them whose form is right: every tool call could be read, or the reply has the form that was
            asked for. None where no form is asked for.
        accuracy: Share that is right.
        reward_mean: Mean total reward.
    """

    questions: int
    faults: int
    parse_rate: float | None
    accuracy: float | None
    reward_mean: float | None


def choose_questions(settings: Settings, trained: Collection[str], reporter: Reporter) -> list[Task]:
    """Questions of the evaluation split, none of them of a company that is trained on, by `eval.seed`.

    Args:
        settings: `sft.validation_samples` says how many; where it is unset there may be none, and the reporter is told.
        trained: Companies.
        reporter: Told why there are none.

    Raises:
        DataError: So many are asked for, and there is none; or the data is missing.
        ConfigError: The environment cannot be made.
    """
    wanted, split = settings.sft.validation_samples, settings.data.eval_split
    if wanted == 0:
        return []
    try:
        environment = open_environment(settings, reporter)
        free = [task for task in environment.tasks(split) if task.cluster not in trained]
        if not free:
            raise DataError(
                f"Split {split!r} of {environment.data().name!r} has no question of a cluster, such as "
                "a company, that is not trained on.",
                remedy="another --split or --snapshot, or --validation-samples 0",
            )
    except DataError as error:
        if wanted is not None:
            raise
        reporter.line(f"The policy is asked no questions while it learns. {error.message}")
        return []
    seed = derive(settings.eval.seed, "sft-samples")
    return list(draw(free, seed=seed, position=0, count=wanted or USUAL_SAMPLES)[0])


class HeldOutQuestions:
    """Has each policy answer the same questions."""

    def __init__(
        self,
        parts: Stage,
        engine: TokenEngine,
        tasks: Sequence[Task],
        settings: Settings,
        folder: RunFolder,
        reporter: Reporter,
        stopper: Stopper,
    ) -> None:
        self._parts = parts
        self._engine = engine
        self._tasks = tasks
        self._settings = settings
        self._folder = folder
        self._reporter = reporter
        self._stopper = stopper

    async def ask(self, learner: Learner, step: int) -> SampleRates | None:
        """Answers of the learner's weights, written to valid_samples/step_N.jsonl with their rewards.

        Returns:
            None when a signal cut it short.

        Raises:
            ThresholdError: More of them ended in faults than the settings allow.
        """
        sleeps = isinstance(self._engine, Sleeper) and self._engine.sleeps
        if sleeps:
            await self._engine.wake()  # type: ignore[attr-defined]
        await self._serve(learner, step)
        answered: list[Trajectory] = []
        await evaluate_tasks(
            self._parts,
            self._settings,
            self._tasks,
            on_trajectory=answered.append,
            reporter=self._reporter,
            stopper=self._stopper,
            key=f"valid/{step}",
        )
        if sleeps:
            await self._engine.sleep()  # type: ignore[attr-defined]
        if self._stopper.requested:
            return None
        return self._rates(answered, step)

    async def _serve(self, learner: Learner, step: int) -> None:
        policies = self._folder.path / "policies"
        policy = await asyncio.to_thread(learner.publish, policies / f"v{step:05d}", step)
        await self._engine.load(policy)
        for old in sorted(policies.glob("v*"))[:-1]:
            shutil.rmtree(old, ignore_errors=True)

    def _rates(self, answered: Sequence[Trajectory], step: int) -> SampleRates:
        path = self._folder.path / SAMPLES / f"step_{step}.jsonl"
        path.unlink(missing_ok=True)  # of a run that was killed here
        writer = JsonlWriter(path)
        records = [trajectory_record(trajectory) for trajectory in sorted(answered, key=lambda each: each.id)]
        for record in records:
            writer.append({"step": step, **record})
        writer.close()
        outcomes = [read_outcome(record) for record in records]
        graded = [outcome for outcome in outcomes if outcome.correct is not None]
        faults = len(outcomes) - len(graded)
        if faults > self._settings.pool.max_fault_share * len(outcomes):
            raise ThresholdError(
                f"{faults} of the {len(outcomes)} answers at step {step} ended in faults; see their errors in {path}.",
                remedy=f"finqa sft --resume {self._folder.path}",
            )
        form = evaluation_metrics(outcomes)["format_compliance"]
        return SampleRates(
            questions=len(graded),
            faults=faults,
            parse_rate=form["value"] if form else None,
            accuracy=sum(bool(each.correct) for each in graded) / len(graded) if graded else None,
            reward_mean=sum(each.reward or 0.0 for each in graded) / len(graded) if graded else None,
        )


@asynccontextmanager
async def asking(
    tasks: Sequence[Task],
    settings: Settings,
    policy: PolicyVersion,
    folder: RunFolder,
    reporter: Reporter,
    stopper: Stopper,
) -> AsyncIterator[HeldOutQuestions | None]:
    """Boxes and engine for as long as the block lasts; None, and nothing is started, without questions."""
    if not tasks:
        yield None
        return
    greedy = settings.model_copy(
        update={
            "eval": settings.eval.model_copy(update={"attempts": 1, "temperature": 0.0}),
            "train": settings.train.model_copy(update={"max_staleness": 0}),  # nothing is played during a step
        }
    )
    try:
        async with stage(
            greedy,
            policy,
            run_id=folder.path.name,
            reporter=reporter,
            trains=True,
            run_dir=folder.path,
            episodes=lambda environment: len(tasks),
            check_stop=lambda: stopper.check(f"finqa sft --resume {folder.path}"),
            on_event=lambda name, facts: folder.event(name, **facts),
        ) as parts:
            engine = parts.engine
            assert isinstance(engine, TokenEngine), "the stage gives training no other"
            if isinstance(engine, Sleeper) and engine.sleeps:
                await engine.sleep()
            yield HeldOutQuestions(parts, engine, tasks, greedy, folder, reporter, stopper)
    finally:
        shutil.rmtree(folder.path / "policies", ignore_errors=True)  # the engine has served them; checkpoints stay
