"""Evaluation on held-out questions during training on a file."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from finqa_cli.contracts import Learner, TokenEngine
from finqa_cli.deletion import discard, try_delete
from finqa_cli.errors import DataError, ThresholdError
from finqa_cli.evaluation.evaluate import eval_split, evaluate_tasks
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.jsonl import JsonlWriter
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.statistics import describe_cut_replies, evaluation_metrics, read_outcome
from finqa_cli.training.evaluations import Ask, SampleRates
from finqa_cli.training.running_learner import run_learner
from finqa_cli.training.training_loop import RunContext, TrainingLoop, final_policy
from finqa_cli.types import GenerateRequest, PolicyVersion, Sample, Sampling, Task, Trajectory
from finqa_cli.wiring.build import open_environment
from finqa_cli.wiring.stage import Stage, stage

Made = TypeVar("Made", bound=TrainingLoop)

USUAL_SAMPLES = 16
"""Number of held-out questions if the settings do not set one."""

MEASURED_ROWS, MEASURED_TOKENS = 4, 8
"""Rows and tokens of the turn by which the time of an evaluation is estimated."""

SAMPLES = "valid_samples"
"""Folder of the run for the answers to held-out questions."""


class HeldOutQuestions:
    """Lets each policy answer the same held-out questions greedily, as in an evaluation."""

    def __init__(self, context: RunContext, parts: Stage, tasks: Sequence[Task]) -> None:
        assert isinstance(parts.engine, TokenEngine), "for training, `stage` accepts no other engine"
        self._context = context
        self._parts = parts
        self._engine: TokenEngine = parts.engine
        self._tasks = tasks

    async def __call__(self, learner: Learner, step: int) -> SampleRates | None:
        """Play the questions with the learner's weights, and write valid_samples/step_N.jsonl with the rewards.

        Args:
            learner: Learner with the weights.
            step: Number of optimizer steps of these weights.

        Returns:
            Rates over the answers; None if a stop was requested.

        Raises:
            ThresholdError: More answers ended in faults than the settings allow.
        """
        context = self._context
        if self._engine.sleeps:
            await self._engine.wake()
        await self._serve(learner, step)
        answered: list[Trajectory] = []
        playing = evaluate_tasks(
            self._parts,
            context.settings,
            self._tasks,
            on_trajectory=answered.append,
            reporter=context.reporter,
            stopper=context.stopper,
            key=f"valid/{step}",
        )
        report = await context.stopper.bounded(playing)
        await self.rest()
        if report is None or context.stopper.requested:
            return None
        played = {kind: facts.episodes for kind, facts in report.by_kind.items()}
        if cut := describe_cut_replies(report.cut_replies, played, context.settings.generation.max_gen_tokens):
            context.reporter.line(cut)
        return replace(self._rates(answered, step), cut_replies=report.cut_replies)

    async def expect_seconds(self, samples: Sequence[Sample]) -> float:
        """Return how long the questions will take, by one turn of `MEASURED_ROWS` rows at the openings of `samples`.

        Rows are decoded together: twice as many rows take less than twice as long, which the square root estimates.
        """
        if self._engine.sleeps:
            return 0.0  # its device belongs to the learner at this moment
        rows = [_opening(sample) for sample in samples[:MEASURED_ROWS]]
        if not all(map(len, rows)):
            return 0.0
        filling = await self._turn_seconds(rows, 1)
        token = max(0.0, await self._turn_seconds(rows, 1 + MEASURED_TOKENS) - filling) / MEASURED_TOKENS
        sampled = sum(sample.loss_tokens for sample in samples) / len(samples)
        more = len(self._tasks) / len(rows)
        return filling * more + token * sampled * math.sqrt(max(1.0, more))

    async def _turn_seconds(self, rows: Sequence[tuple[int, ...]], tokens: int) -> float:
        sampling = Sampling(temperature=0.0, max_tokens=tokens)
        began = time.perf_counter()
        requests = [
            GenerateRequest(key=f"estimate {number}", token_ids=row, sampling=sampling)
            for number, row in enumerate(rows)
        ]
        await asyncio.gather(*map(self._engine.generate, requests))
        return time.perf_counter() - began

    async def rest(self) -> None:
        """Free the engine's device for the learner, if they share it, until the next call of `ask`."""
        if self._engine.sleeps:
            await self._engine.sleep()

    async def _serve(self, learner: Learner, step: int) -> None:
        policies = self._context.folder.path / "policies"
        with self._context.work(f"loading the weights of step {step} into the engine"):
            policy = await asyncio.to_thread(learner.publish, policies / f"v{step:05d}", step)
            await self._engine.load(policy)
        for old in sorted(policies.glob("v*"))[:-1]:
            try_delete(old, within=self._context.folder.path)

    def _rates(self, answered: Sequence[Trajectory], step: int) -> SampleRates:
        path = self._context.folder.path / SAMPLES / f"step_{step}.jsonl"
        path.unlink(missing_ok=True)  # a killed run may have left a part of it
        writer = JsonlWriter(path)
        records = [trajectory_record(trajectory) for trajectory in sorted(answered, key=lambda each: each.id)]
        for record in records:
            writer.append({"step": step, **record})
        writer.close()
        outcomes = [read_outcome(record) for record in records]
        graded = [outcome for outcome in outcomes if outcome.correct is not None]
        faults = len(outcomes) - len(graded)
        if faults > self._context.settings.pool.max_fault_share * len(outcomes):
            raise ThresholdError(
                f"{faults} of the {len(outcomes)} answers at step {step} ended in faults; see their errors in {path}.",
                remedy=self._context.resume_command,
            )
        form = evaluation_metrics(outcomes)["format_compliance"]
        return SampleRates(
            questions=len(graded),
            faults=faults,
            parse_rate=form["value"] if form else None,
            accuracy=sum(bool(each.correct) for each in graded) / len(graded) if graded else None,
            reward_mean=sum(each.reward or 0.0 for each in graded) / len(graded) if graded else None,
        )


def _opening(sample: Sample) -> tuple[int, ...]:
    return tuple(map(int, sample.token_ids[: int(np.argmax(sample.loss_mask))]))


def choose_questions(
    settings: Settings, wanted: int | None, trained: Collection[str], reporter: Reporter
) -> list[Task]:
    """Draw questions of the evaluation split about companies that are not used for training, seeded by `eval.seed`.

    If every company is used for training and `data.allow_overlap` is set, draw from all questions.

    Args:
        settings: Environment, data and seed.
        wanted: Number of questions. None: 16, or none with a report of the reason if no questions are available.
        trained: Companies that are used for training.
        reporter: Receives the reason when there are no questions.

    Raises:
        DataError: A number is given, and there are no questions or the data is missing.
        ConfigError: The environment cannot be constructed.
    """
    if wanted == 0:
        return []
    try:
        environment = open_environment(settings, reporter)
        split = eval_split(environment, settings)
        every = environment.tasks(split)
        free = [task for task in every if task.cluster not in trained]
        if settings.data.allow_overlap:
            free = free or list(every)
        if not free:
            raise DataError(
                f"Split {split!r} of {environment.data().name!r} has no question of a cluster (such "
                "as a company) outside of the training data.",
                remedy="another --split or --snapshot, or --validation-samples 0",
            )
    except DataError as error:
        if wanted is not None:
            raise
        reporter.line(f"The policy is not evaluated during training. {error.message}")
        return []
    seed = derive(settings.eval.seed, "sft-samples")
    return list(draw(free, seed=seed, position=0, count=wanted or USUAL_SAMPLES)[0])


async def train_on_file(
    context: RunContext,
    model: PolicyVersion,
    questions: Sequence[Task],
    checkpoint: Checkpoint | None,
    make: Callable[[Learner, Ask | None], Awaitable[Made]],
) -> Made:
    """Train on a file with a learner, ask held-out questions in between, and publish the final policy.

    Args:
        context: Common parts of the run.
        model: The policy that the training starts from.
        questions: Held-out questions; none: nothing is asked.
        checkpoint: The checkpoint to resume from; None: from the beginning.
        make: Makes the training, given the started learner and the function that asks.

    Returns:
        The finished training.

    Raises:
        FinqaError: A loss was not finite, or learner, engine or sandboxes failed.
        InterruptedRun: A signal stopped the run.
    """
    async with run_learner(context, model.model) as learner:
        async with held_out_questions(context, questions, model) as ask:
            training = await make(learner, ask)
            if checkpoint is not None:
                await training.resume(checkpoint)
            with context.tracking.run(to_public_dict(context.settings)):
                await training.run()
                context.check_stop()
        await asyncio.to_thread(learner.publish, final_policy(context.folder.path), training.done)
    return training


@asynccontextmanager
async def held_out_questions(
    context: RunContext, tasks: Sequence[Task], policy: PolicyVersion
) -> AsyncIterator[Ask | None]:
    """Start sandboxes and an engine for this block, and yield the function `ask`; without tasks, yield None."""
    if not tasks:
        yield None
        return
    settings, folder = context.settings, context.folder
    greedy = settings.model_copy(
        update={
            "eval": settings.eval.model_copy(update={"attempts": 1, "temperature": 0.0}),
            "train": settings.train.model_copy(update={"max_staleness": 0}),  # no rollouts run during a step
        }
    )
    try:
        async with stage(
            greedy,
            policy,
            run_id=folder.path.name,
            reporter=context.reporter,
            trains=True,
            run_dir=folder.path,
            episodes=lambda environment: len(tasks),
            check_stop=context.check_stop,
            on_event=lambda name, facts: folder.event(name, **facts),
        ) as parts:
            questions = HeldOutQuestions(replace(context, settings=greedy), parts, tasks)
            await questions.rest()
            yield questions
    finally:
        # The engine no longer needs these versions. Checkpoints are elsewhere.
        discard(folder.path / "policies")
