"""Supervised fine-tuning: its steps, and the answers of the policy to held-out questions while it learns."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import Learner, TokenEngine
from finqa_cli.errors import DataError, FinqaError, ThresholdError
from finqa_cli.evaluation.evaluate import evaluate_tasks
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.runs.jsonl import JsonlWriter
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.statistics import evaluation_metrics, read_outcome
from finqa_cli.training.training_loop import Evaluation, FileTraining, RunContext
from finqa_cli.types import Batch, PolicyVersion, Sample, Task, Trajectory, UpdateReport
from finqa_cli.wiring.build import open_environment
from finqa_cli.wiring.stage import Stage, stage

CROSS_ENTROPY = CrossEntropyLoss()

USUAL_SAMPLES = 16
"""Held-out questions that are asked where the settings do not say how many."""

SAMPLES = "valid_samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRates:
    """Rates over the answers to held-out questions; faults are in no rate, and without a graded answer all are None.

    Attributes:
        questions: Number of answers that were graded.
        faults: Number of attempts that infrastructure ended.
        parse_rate: Share of answers whose form is right: every tool call could be read, or the reply has the form that
            was asked for. None where no form is asked for.
        accuracy: Share of right answers.
        reward_mean: Mean total reward.
    """

    questions: int
    faults: int
    parse_rate: float | None
    accuracy: float | None
    reward_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Evaluation):
    """The evaluation of a policy on held-out companies.

    Attributes:
        loss: Nats per demonstrated token; None without held-out demonstrations.
        samples: Rates over its own answers; None where it was not asked.
    """

    loss: float | None
    samples: SampleRates | None


class HeldOutQuestions:
    """Has each policy answer the same held-out questions, greedily, as an evaluation plays them."""

    def __init__(self, context: RunContext, parts: Stage, tasks: Sequence[Task]) -> None:
        assert isinstance(parts.engine, TokenEngine), "for training, `stage` accepts no other engine"
        self._context = context
        self._parts = parts
        self._engine: TokenEngine = parts.engine
        self._tasks = tasks

    async def ask(self, learner: Learner, step: int) -> SampleRates | None:
        """Plays the questions with the learner's weights and writes valid_samples/step_N.jsonl with the rewards.

        Returns:
            None when a signal cut it short.

        Raises:
            ThresholdError: More answers ended in faults than the settings allow.
        """
        context = self._context
        if self._engine.sleeps:
            await self._engine.wake()
        await self._serve(learner, step)
        answered: list[Trajectory] = []
        await evaluate_tasks(
            self._parts,
            context.settings,
            self._tasks,
            on_trajectory=answered.append,
            reporter=context.reporter,
            stopper=context.stopper,
            key=f"valid/{step}",
        )
        await self.rest()
        return None if context.stopper.requested else self._rates(answered, step)

    async def rest(self) -> None:
        """Leaves the engine's device to the learner, where they share one, until the next call of `ask`."""
        if self._engine.sleeps:
            await self._engine.sleep()

    async def _serve(self, learner: Learner, step: int) -> None:
        policies = self._context.folder.path / "policies"
        policy = await asyncio.to_thread(learner.publish, policies / f"v{step:05d}", step)
        await self._engine.load(policy)
        for old in sorted(policies.glob("v*"))[:-1]:
            shutil.rmtree(old, ignore_errors=True)

    def _rates(self, answered: Sequence[Trajectory], step: int) -> SampleRates:
        path = self._context.folder.path / SAMPLES / f"step_{step}.jsonl"
        path.unlink(missing_ok=True)  # a run that was killed here may have left it
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


class SupervisedTraining(FileTraining[Sample, Validation]):
    """The loop of supervised fine-tuning.

    Its parts: `FileTraining` takes the steps and keeps the policy with the lowest loss on held-out demonstrations;
    `HeldOutQuestions` has each policy that is evaluated answer questions of its own accord.
    """

    phase = "sft"
    items_name = "demonstrations"
    result = Validation

    def __init__(
        self,
        context: RunContext,
        learner: Learner,
        steps: Sequence[Sequence[Sample]],
        held_out: Sequence[Sample],
        questions: HeldOutQuestions | None,
    ) -> None:
        every = context.settings.sft.validate_every
        super().__init__(context, learner, CROSS_ENTROPY, steps, held_out, evaluate_every=every)
        self._questions = questions
        self._complete = True  # the newest evaluation was not cut short

    def state(self) -> dict[str, Any]:
        """Adds the last loss, and whether the newest evaluation was finished."""
        return {**super().state(), "loss": self.loss, "looked": self._complete}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over the evaluations, the last loss, and whether an evaluation is to be repeated."""
        super().restore(state)
        self.loss, self._complete = float(state["loss"]), bool(state["looked"])

    async def begin(self) -> None:
        """Computes the held-out loss of the first policy, or repeats an evaluation that was cut short."""
        await super().begin()
        if self.fresh:
            self.before = self.after = Validation(step=0, loss=await self._held_out_loss(), samples=None)
            self._record(self.before)
        elif not self._complete:
            await self.measure()
            await self.checkpoint()

    def ids(self, items: Sequence[Sample]) -> list[str]:
        """Returns the ids of the demonstrations."""
        return [sample.episode for sample in items]

    def samples(self, items: Sequence[Sample]) -> list[Sample]:
        """Returns the demonstrations themselves."""
        return list(items)

    def make_batch(self, items: Sequence[Sample], *, padded: bool) -> Batch:
        """Packs the demonstrations of a step."""
        budget = self.context.settings.train.token_budget
        return pack(items, token_budget=budget, max_rows=len(items), padded=padded)

    def line(self, number: int, report: UpdateReport, items: Sequence[Sample]) -> dict[str, Any]:
        """Returns the record of a step."""
        return {
            "kind": "sft",
            "iteration": number,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "learning_rate": report.learning_rate,
            "tokens": report.tokens,
            "loss_tokens": report.loss_tokens,
            "timing": {"update_s": round(report.seconds, 4)},
        }

    def merit(self, found: Validation) -> tuple[float, ...] | None:
        """Prefers the lower loss on held-out demonstrations."""
        return None if found.loss is None else (-found.loss,)

    async def measure(self) -> None:
        """Computes the held-out loss and asks the questions. Cut short, it is repeated when the run is resumed."""
        loss = await self._held_out_loss()
        try:
            samples = None if self._questions is None else await self._questions.ask(self.learner, self.done)
        except FinqaError:
            self._complete = False
            await self.checkpoint()
            raise
        self._complete = self._questions is None or samples is not None
        if self._complete:
            self.after = Validation(step=self.done, loss=loss, samples=samples)
            self._record(self.after)

    async def _held_out_loss(self) -> float | None:
        if not self.held_out:
            return None
        rows = await asyncio.to_thread(self.learner.logprobs, self.held_out)
        loss = -math.fsum(map(math.fsum, rows)) / sum(sample.loss_tokens for sample in self.held_out)
        if not math.isfinite(loss):
            reason = f"After step {self.done} the loss on held-out demonstrations is {loss}."
            raise self.not_finite(reason, self.held_out)
        return loss

    def _record(self, found: Validation) -> None:
        samples = found.samples
        if found.loss is None and samples is None:
            return
        rates = asdict(samples) if samples else {}
        self.context.tracking.record(
            {"kind": "validation", "iteration": found.step, "validation_loss": found.loss, **rates}
        )
        parts = [f"held-out loss {found.loss:.4f}"] if found.loss is not None else []
        if samples is not None:
            names = ("parse_rate", "accuracy", "reward_mean")
            parts += [f"{name} {rates[name]:.3f}" for name in names if rates[name] is not None]
            parts.append(f"on {samples.questions} questions")
        self.context.reporter.line(f"step {found.step}: {', '.join(parts)}")


def choose_questions(settings: Settings, trained: Collection[str], reporter: Reporter) -> list[Task]:
    """Draws questions of the evaluation split, none of them of a company that is trained on, by `eval.seed`.

    Args:
        settings: `sft.validation_samples` says how many; where it is unset there may be none, and the reporter says so.
        trained: Companies that are trained on.
        reporter: Receives the reason when there are no questions.

    Raises:
        DataError: Questions are asked for, and there is none; or the data is missing.
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


@asynccontextmanager
async def held_out_questions(
    context: RunContext, tasks: Sequence[Task], policy: PolicyVersion
) -> AsyncIterator[HeldOutQuestions | None]:
    """Runs sandboxes and an engine for the length of the block; without tasks it starts nothing and yields None."""
    if not tasks:
        yield None
        return
    settings, folder = context.settings, context.folder
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
        # The engine has served them; checkpoints stay.
        shutil.rmtree(folder.path / "policies", ignore_errors=True)
