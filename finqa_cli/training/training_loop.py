"""The base of all training loops, and the common parts of a training run."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter

from finqa_cli.contracts import Learner
from finqa_cli.errors import FinqaError, InterruptedRun
from finqa_cli.runs import checkpoints
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings
from finqa_cli.training.estimate import (
    SHORT_S,
    Again,
    Estimate,
    announce,
    length_of,
    measure_gradient,
    no_command,
    shorter_epochs,
)
from finqa_cli.training.evaluations import Ask, Evaluation
from finqa_cli.training.loss_watch import compared_steps, find_stuck
from finqa_cli.types import Batch, Loss, Sample, UpdateReport

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHOWN_IDS = 3
"""Most ids that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Common parts of a training run.

    Attributes:
        settings: Settings of the run.
        folder: The open run folder: records, events, checkpoints.
        tracking: Writes each record, and copies it to hooks and trackers.
        reporter: Shows the progress to the user.
        stopper: Stops the run after signals.
        again: Returns the command of the run with other values of some settings; see `estimate.Again`.
    """

    settings: Settings
    folder: RunFolder
    tracking: Tracking
    reporter: Reporter
    stopper: Stopper
    again: Again = no_command

    @property
    def resume_command(self) -> str:
        """The command that resumes this run."""
        return f"finqa {self.folder.command} --resume {self.folder.path}"

    def work(self, text: str, *, yields: bool = False, shown: bool = True) -> AbstractContextManager[None]:
        """Show and record for this block what is done; see `Reporter.work`. Calls of the learner yield."""
        on_event = (lambda name, facts: self.folder.event(name, **facts)) if shown else None
        return self.reporter.work(text, yields=yields, shown=shown, on_event=on_event)

    def check_stop(self) -> None:
        """Raise InterruptedRun, with the command that resumes the run, if a stop was requested."""
        self.stopper.check(self.resume_command)

    def newest_policy(self) -> str:
        """Return a sentence that names the newest checkpoint, for errors; empty if there is none."""
        newest = checkpoints.latest(self.folder.path)
        return f" The newest valid policy is {newest.path}." if newest else ""


class TrainingLoop(ABC):
    """Base class of training loops: runs the iterations, and evaluates and writes checkpoints at intervals.

    Both are also done after the last iteration. `run` fixes the order of an iteration, which is the order of the
    records on disk: the step, the evaluation if one is due, the checkpoint if one is due. Subclasses implement:

    - `begin`: work before the first iteration, such as the evaluation of the policy that training starts from.
    - `step`: one iteration, with its record.
    - `evaluate`: an evaluation, with its record.
    - `state` and `restore`: the state of a checkpoint besides weights.
    - `stop`: work after a stop was requested between two iterations.
    - `keep_best` and `add_files` (optional): whether a policy is the best so far, and further files of a checkpoint.

    Attributes:
        phase: Name of the progress display.
        own_lines: `step` prints a line about each iteration; see `Reporter.start`.
        context: Common parts of the run.
        learner: The learner, started.
        total: Number of iterations of the run.
        done: Number of finished iterations.
        fresh: The run is not resumed from a checkpoint.
    """

    phase: ClassVar[str]
    own_lines: ClassVar[bool] = False

    def __init__(
        self, context: RunContext, learner: Learner, *, total: int, evaluate_every: int, checkpoint_every: int
    ) -> None:
        """Prepare a new run.

        Args:
            context: Common parts of the run.
            learner: The learner, started.
            total: Number of iterations.
            evaluate_every: Iterations between evaluations; 0: only after the last one.
            checkpoint_every: Iterations between checkpoints; 0: only after the last one.
        """
        self.context = context
        self.learner = learner
        self.total = total
        self.done = 0
        self.fresh = True
        self._evaluate_every = evaluate_every
        self._checkpoint_every = checkpoint_every

    async def resume(self, checkpoint: Checkpoint) -> None:
        """Load weights and state, so that `run` continues exactly where the checkpoint was written."""
        with self.context.work(f"loading the checkpoint of {self.phase} {checkpoint.iteration}"):
            await asyncio.to_thread(self.learner.load, checkpoint.path / "learner")
        self.done, self.fresh = checkpoint.iteration, False
        self.restore(checkpoint.state)

    async def run(self) -> None:
        """Run all remaining iterations, or those until a stop is requested."""
        reporter = self.context.reporter
        reporter.start(self.phase, self.total, own_lines=self.own_lines)  # first, so that no wait is silent
        await self.begin()
        if self.done < self.total and not self.context.stopper.requested:
            with self.context.work("measuring how long the run will take", yields=True):
                expected = await self.estimate()
            announce(expected, self.context.folder, reporter, self.context.again)
        while self.done < self.total:
            if self.context.stopper.requested:
                await self.stop()
                break
            shown = await self.step(self.done + 1)
            self.done += 1
            reporter.advance(self.phase, self.done, **shown)
            if self._is_due(self._evaluate_every):
                await self.evaluate()
            if self._is_due(self._checkpoint_every):
                await self.checkpoint()
        reporter.finish(self.phase)

    async def checkpoint(self) -> None:
        """Write `checkpoints/step_N`, and before it `checkpoints/best` if the policy is the best so far.

        Raises:
            StorageError: The disk is full or not writable.
        """
        # All of it is in a thread, so that running episodes do not wait for checksums and the disk.
        with self.context.work(f"writing the checkpoint of {self.phase} {self.done}", yields=True):
            await asyncio.to_thread(self._write_checkpoint, self.keep_best(), self.state())

    @abstractmethod
    async def begin(self) -> None:
        """Do the work before the first iteration."""

    async def estimate(self) -> Estimate | None:
        """Estimate how long the remaining iterations will take; None if that cannot be measured. Default: None."""
        return None

    @abstractmethod
    async def step(self, number: int) -> Mapping[str, object]:
        """Run iteration `number`, counted from 1, and return the figures to show with the progress."""

    @abstractmethod
    async def evaluate(self) -> None:
        """Evaluate the policy after `done` iterations."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state of a checkpoint besides weights; `policy_version` must be the number of its policy."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state` of a checkpoint."""

    @abstractmethod
    async def stop(self) -> None:
        """Do the work after a stop was requested between two iterations."""

    def keep_best(self) -> bool:
        """Return whether the policy that is about to be saved is the best so far, and remember it. Default: False."""
        return False

    def add_files(self, folder: Path) -> None:  # noqa: B027  most methods have none
        """Write further files into the folder of a checkpoint. Default: none."""

    def _is_due(self, every: int) -> bool:
        return self._falls_due(self.done, every)

    def _falls_due(self, done: int, every: int) -> bool:
        return done == self.total or (every > 0 and done % every == 0)

    def _write_checkpoint(self, is_best: bool, state: Mapping[str, Any]) -> None:
        run, version = self.context.folder.path, state["policy_version"]
        if is_best:
            self.learner.publish(best_policy(run), version)
        with checkpoints.writing(run, self.done, state) as folder:
            self.learner.publish(folder / "policy", version)
            self.learner.save(folder / "learner")
            self.add_files(folder)
        checkpoints.prune(run, self.context.settings.train.keep_checkpoints)
        self.context.folder.update_mirror()


Item = TypeVar("Item")
Found = TypeVar("Found", bound=Evaluation)


class FileTraining(TrainingLoop, Generic[Item, Found]):
    """Training on a file: the items of every optimizer step are known before the first one.

    Attributes:
        items_name: Name of the items, for errors.
        result: Type of an evaluation's result.
        record_kind: `kind` of the records of evaluations in metrics.jsonl.
        steps: Items of each optimizer step, in order.
        held_out: Items to evaluate on.
        before: Evaluation of the policy that training starts from.
        after: The newest evaluation.
        best: The best evaluation of a policy of this run.
        loss: Loss of the last step.
    """

    items_name: ClassVar[str]
    result: ClassVar[type[Evaluation]]
    record_kind: ClassVar[str]

    def __init__(
        self,
        context: RunContext,
        learner: Learner,
        loss: Loss,
        steps: Sequence[Sequence[Item]],
        held_out: Sequence[Item],
        ask: Ask | None,
        *,
        evaluate_every: int,
    ) -> None:
        super().__init__(
            context, learner, total=len(steps), evaluate_every=evaluate_every, checkpoint_every=evaluate_every
        )
        self.steps = steps
        self.held_out = held_out
        self.before: Found | None = None
        self.after: Found | None = None
        self.best: Found | None = None
        self.loss = math.nan
        self._loss_function = loss
        self._ask = ask
        self._complete = True  # the newest evaluation was not interrupted
        self._losses: list[float] = []  # of the first steps, until the loss is looked at
        self._padded = False
        self._saved = 0  # steps of the newest checkpoint
        self._examined_s = 0.0  # seconds of an evaluation without questions

    @abstractmethod
    def ids(self, items: Sequence[Item]) -> list[str]:
        """Return the ids of items, for errors."""

    @abstractmethod
    def samples(self, items: Sequence[Item]) -> list[Sample]:
        """Return the token sequences of items."""

    @abstractmethod
    def make_batch(self, items: Sequence[Item], *, padded: bool) -> Batch:
        """Return the batch of one optimizer step."""

    @abstractmethod
    def line(self, number: int, report: UpdateReport, items: Sequence[Item]) -> dict[str, Any]:
        """Return the record of a step for metrics.jsonl."""

    @abstractmethod
    async def examine(self) -> Found | None:
        """Evaluate the policy on `held_out`; None if there is nothing to evaluate and nothing to report."""

    @abstractmethod
    def describe(self, found: Found) -> tuple[Mapping[str, Any], str]:
        """Return the fields of an evaluation's record, and a text for the screen, which is not shown if empty."""

    @abstractmethod
    def merit(self, found: Found) -> tuple[float, ...] | None:
        """Return a key by which evaluations are compared, larger is better; None if it cannot be compared."""

    async def begin(self) -> None:
        """Evaluate the policy that training starts from, without questions. In a resumed run, repeat an interrupted
        evaluation.
        """
        self._padded = not await asyncio.to_thread(self.learner.packs)
        self._saved = self.done
        if self.fresh:
            began = time.perf_counter()
            await self._measure(None)
            self._examined_s = time.perf_counter() - began
            self.before = self.after
        elif not self._complete:
            await self._measure(self._ask)
            await self.checkpoint()

    async def estimate(self) -> Estimate | None:
        """Estimate the steps that are left by the item of middle length, and the evaluations by the first one."""
        path, epochs = self.epochs()
        items = sorted(self.steps[self.done], key=lambda item: length_of(self.samples([item])))
        middle = items[len(items) // 2 : len(items) // 2 + 1]
        batch = await asyncio.to_thread(self.make_batch, middle, padded=self._padded)
        left = sum(length_of(self.samples(step)) for step in self.steps[self.done :])
        times = left / length_of(self.samples(middle))
        seconds = await measure_gradient(self.learner, batch, self._loss_function, times=times)
        if seconds is None:
            return None
        due = sum(1 for done in range(self.done + 1, self.total + 1) if self._falls_due(done, self._evaluate_every))
        parts = {"steps": seconds * times, "validation": self._examined_s * due}
        if self._ask is not None and parts["steps"] >= SHORT_S:
            parts["held-out questions"] = due * await self._ask.expect_seconds(self.samples(items))
        return shorter_epochs(path, epochs, parts)

    @abstractmethod
    def epochs(self) -> tuple[str, float]:
        """Return the setting of the number of epochs, and its value."""

    async def step(self, number: int) -> Mapping[str, object]:
        """Take one optimizer step.

        Raises:
            FinqaError: Loss or gradient was not finite; the message names the items and the newest checkpoint.
        """
        items, tracking = self.steps[number - 1], self.context.tracking
        batch = await asyncio.to_thread(self.make_batch, items, padded=self._padded)
        try:
            with self.context.work(f"{self.phase} step {number} of {self.total}", yields=True, shown=False):
                report = await asyncio.to_thread(self.learner.update, batch, self._loss_function)
        except InterruptedRun:
            await self.stop()  # the step was not taken; those before it are kept
            raise
        except FinqaError as error:
            if type(error) is not FinqaError:
                raise
            raise self.not_finite(error.message, items) from error
        self.loss = report.loss
        self._watch_loss(number, report)
        tracking.record(self.line(number, report, items))
        tracking.update(number, report)
        accuracy = report.metrics.get("preference_accuracy")
        return {"loss": round(report.loss, 4), **({} if accuracy is None else {"accuracy": round(accuracy, 3)})}

    def _watch_loss(self, number: int, report: UpdateReport) -> None:
        """Warn once if the loss has not moved after a fifth of the steps."""
        if number > (looked := compared_steps(self.total)):
            return
        self._losses.append(report.loss)
        if number == looked == len(self._losses) and (stuck := find_stuck(self._losses)) is not None:
            rate = self.context.settings.train.learning_rate or report.learning_rate
            self.context.reporter.line(f"warning: {stuck.words(rate)}")
            self.context.folder.event("loss_stuck", **asdict(stuck))

    async def evaluate(self) -> None:
        """Check that the weights give finite log-probabilities before they become a checkpoint, and evaluate them.

        Raises:
            FinqaError: Log-probabilities are not finite.
        """
        items = self.steps[self.done - 1]
        self._complete = False
        try:
            with self.context.work(f"scoring {self.phase} step {self.done}", yields=True):
                rows = await asyncio.to_thread(self.learner.logprobs, self.samples(items[:1]))
        except InterruptedRun:
            await self.checkpoint()
            raise
        if not all(math.isfinite(logp) for row in rows for logp in row):
            reason = f"After step {self.done} the policy's log-probabilities are not finite."
            raise self.not_finite(reason, items)
        await self._measure(self._ask)

    async def _measure(self, ask: Ask | None) -> None:
        """Evaluate the policy and set `after`. An interrupted evaluation is repeated when the run is resumed."""
        try:
            with self.context.work(f"validation of {len(self.held_out)} {self.items_name}", yields=True):
                found = await self.examine()
            samples = None if ask is None else await ask(self.learner, self.done)
        except FinqaError as error:
            self._complete = False
            if self.done or not isinstance(error, InterruptedRun):  # before the first step there is nothing to keep
                await self.checkpoint()
            raise
        self._complete = ask is None or samples is not None
        if not self._complete:
            return
        fields, words = ({}, "") if found is None else self.describe(found)
        if found is not None:
            self.after = replace(found, samples=samples)
        rates = {} if samples is None else asdict(samples)
        if not words and not rates:
            return
        self.context.tracking.record({"kind": self.record_kind, "iteration": self.done, **fields, **rates})
        parts = [words] if words else []
        if samples is not None:
            shown = (name for name in ("parse_rate", "accuracy", "reward_mean") if rates[name] is not None)
            parts += [*(f"{name} {rates[name]:.3f}" for name in shown), f"on {samples.questions} questions"]
        self.context.reporter.line(f"step {self.done}: {', '.join(parts)}")

    def keep_best(self) -> bool:
        """Compare the evaluation of the policy that is about to be saved, if there is one, with the best so far."""
        found, best = self.after, self.best
        if found is None or found.step != self.done or (merit := self.merit(found)) is None:
            return False
        if best is not None and (highest := self.merit(best)) is not None and not merit > highest:
            return False
        self.best = found
        return True

    def state(self) -> dict[str, Any]:
        """Return the number of the policy, the name of the model that training started from, and the evaluations.

        `looked` shows whether the newest evaluation was finished.
        """
        evaluations = {"before": self.before, "after": self.after, "best": self.best}
        return {
            "policy_version": self.done,
            "model": self.context.settings.model.name,
            "looked": self._complete,
            "losses": self._losses,
            **{name: None if found is None else asdict(found) for name, found in evaluations.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the evaluations."""
        adapter: TypeAdapter[Any] = TypeAdapter(self.result)
        found = (state.get(name) for name in ("before", "after", "best"))
        self.before, self.after, self.best = (facts and adapter.validate_python(facts) for facts in found)
        self._losses = list(state.get("losses", ()))
        self._complete = bool(state.get("looked", True))  # absent in DPO runs from before it used held-out questions

    async def stop(self) -> None:
        """Write a checkpoint, if steps were taken since the last one."""
        if self.done != self._saved:
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write a checkpoint as `TrainingLoop` does, and remember its step."""
        await super().checkpoint()
        self._saved = self.done

    def not_finite(self, reason: str, items: Sequence[Item]) -> FinqaError:
        """Return the error that names the items and the newest valid policy."""
        ids = self.ids(items)
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        names = f"Its {self.items_name}: {', '.join(ids[:SHOWN_IDS])}{more}."
        return FinqaError(f"{reason} {names}{self.context.newest_policy()}", remedy="a lower --lr")


def best_policy(run: Path) -> Path:
    """Return the folder of the policy with the best evaluation on held-out items."""
    return run / "checkpoints" / "best"


def final_policy(run: Path) -> Path:
    """Return the folder of the policy of the last step."""
    return run / "checkpoints" / "final"


def result_document(result: DataclassInstance) -> dict[str, Any]:
    """Return the `--json` form of the result of training on a file: its fields, with paths as text."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(result).items()}
