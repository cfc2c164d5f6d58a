"""One learner of several processes: each call of the first process is executed in all of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from finqa_cli.contracts import LearnerContext, LearnerEvents, LearnerProcesses
from finqa_cli.errors import ConfigError, FinqaError, LearnerProcessError
from finqa_cli.types import Batch, FloatRow, Loss, PolicyVersion, Sample, UpdateReport
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.launch import POLL_S, Workers
from finqa_plugins.learners.torch.distributed.process_group import ProcessGroup, end_process
from finqa_plugins.learners.torch.torch_learner import TorchLearner

_joined: TorchrunProcesses | None = None
_END_S = 5.0
"""Seconds after a broken connection in which the launcher notices how a process ended."""


def make_learner(config: TorchLearnerConfig, context: LearnerContext) -> TorchLearner:
    """The learner of this process, or of several: those that torchrun started, or that this process will start.

    Raises:
        ConfigError: torchrun started another number of processes than the settings name, on one machine or in total.
    """
    if _joined is not None:
        if context.processes not in (1, _joined.size, _joined.local_size):
            raise ConfigError(
                f"train.learner_processes={context.processes}, but torchrun started {_joined.size} processes.",
                remedy="run the command without torchrun",
            )
        return DistributedLearner(config, context, _joined)
    if context.processes > 1:
        return DistributedLearner(config, context, StartedProcesses(context.processes, context.logs))
    return TorchLearner(config, context)


def join() -> TorchrunProcesses:
    """Joins the processes that torchrun started, once; they share all learners that are made from now on."""
    global _joined  # a process can join only once
    if _joined is None:
        numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        _joined = TorchrunProcesses(*(int(os.environ[name]) for name in numbers))
        _joined.join_torchrun()
    return _joined


def open_store(folder: Path, size: int, rank: int) -> Store:
    """The store with which the processes of one machine find each other; registers this process in it."""
    store = FileStore(str(folder / "store"), size)
    store.set(f"here/{rank}", "")
    return store


class TorchrunProcesses(ProcessGroup, LearnerProcesses):
    """The processes that share a learner."""

    def serve(self, model: str = "") -> int:
        """Under torchrun: executes the calls of the first process until it closes or is gone; returns the exit status.

        After a failure this process ends. Over gloo its status is still 0: the first process notices the broken
        connections and can clean up, while for any other status torchrun would end all processes at once. NCCL does
        not notice that a process is gone; there the status is 1.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(
                number, signal.SIG_IGN
            )  # the first process decides when to stop, and needs this one until then
        if (error := self.follow(model)) is not None:
            if self.over_nccl:
                print(f"error: process {self.rank + 1}: {error}", file=sys.__stderr__, flush=True)
            end_process(int(self.over_nccl))
        return 0

    def follow(self, model: str = "") -> Exception | None:
        """Executes the calls of the first process until it closes or is gone; returns the error of a failed call.

        `model` is the base model on this machine; empty: that of the first process.
        """
        learner: TorchLearner | None = None
        while call := self.receive_call():
            name, arguments = call
            try:
                if name == "start":
                    config, context = arguments
                    context = replace(context, model=model or context.model)
                    learner = TorchLearner(config, context, self)
                    learner.start()
                else:
                    getattr(learner, name)(*arguments)
            except Exception as error:
                self.leave_error(error)
                return error
        self.close()
        return None


class StartedProcesses(TorchrunProcesses):
    """The first process, and those that it starts."""

    def __init__(self, size: int, logs: Path | None) -> None:
        """Starts nothing yet.

        Args:
            size: Number of processes, including this one.
            logs: Folder for the output of the other processes; None writes it to stderr.
        """
        super().__init__(0, size, 0)
        self.on_failure: Callable[[FinqaError], None] = lambda error: None
        self._logs = logs
        self._folder: Path | None = None
        self._workers: Workers | None = None

    def begin(self) -> None:
        """Starts the other processes and waits until they have joined.

        Raises:
            FinqaError: A process ended.
        """
        if self._workers is not None:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="finqa-learner-"))  # for this user only
        self._workers = Workers(self.size, self._folder, self._logs, self._ended)
        self._workers.start()
        store = open_store(self._folder, self.size, 0)
        while not store.check([f"here/{rank}" for rank in range(self.size)]):
            if self._workers.ended.wait(POLL_S):
                raise self._failure("")
        self.join(store)

    def close(self) -> None:
        """Ends the other processes; kills them if a call is in progress, or after a failure."""
        if self._workers is None or self._folder is None:
            return
        idle = self._between_calls
        broken = self._broken or not idle.is_set() or self._workers.ended.is_set() or self._store is None
        if broken:
            self.abort()
        else:
            super().close()
        self._workers.close(kill=broken)
        if broken and self._store is not None and idle.wait(_END_S):
            with contextlib.suppress(RuntimeError):  # the connections are broken
                dist.destroy_process_group()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ended(self) -> None:
        self.abort()
        self.on_failure(self._failure(""))

    def _end_of_another(self, reason: str) -> FinqaError:
        assert self._workers is not None, "they have been started"
        gone = self._workers.reason if self._workers.ended.wait(_END_S) else f"A learner process ended: {reason}"
        return LearnerProcessError(f"{gone}." + (f" Its log: {self._logs}/learner-*.log" if self._logs else ""))


class DistributedLearner(TorchLearner):
    """The learner in the first of several processes: every call is executed in all of them."""

    def __init__(self, config: TorchLearnerConfig, context: LearnerContext, processes: ProcessGroup) -> None:
        super().__init__(config, context, processes)
        self._all = processes
        self._begun = False

    def report_to(self, events: LearnerEvents) -> None:
        """Reports as a single process does, and also when another process is gone."""
        super().report_to(events)
        if isinstance(self._all, StartedProcesses):
            self._all.on_failure = events.failed

    def start(self) -> None:
        """Loads the model as a single process does; starts the other processes first, unless torchrun did."""
        if not self._begun:
            if isinstance(self._all, StartedProcesses):
                self._all.begin()
            start = super().start
            context = replace(self._context, logs=None)
            self._all.together(lambda config, context: start(), "start", self._config, context)
            self._begun = True

    def close(self) -> None:
        """Ends the processes that it started; the command ends those of torchrun."""
        if isinstance(self._all, StartedProcesses):
            self._all.close()

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """Takes the step of a single process, within rounding: each takes a share of the micro-batches."""
        self.start()
        return self._all.together(super().update, "update", batch, loss)

    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as a single process does."""
        self.start()
        return self._all.together(super().logprobs, "logprobs", samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as a single process does."""
        self.start()
        return self._all.together(super().reference_logprobs, "reference_logprobs", samples)

    def values(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as a single process does."""
        self.start()
        return self._all.together(super().values, "values", samples)

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes the same files as a single process."""
        self.start()
        return self._all.together(super().publish, "publish", folder, number)

    def save(self, folder: Path) -> None:
        """Writes the same files as a single process."""
        self.start()
        self._all.together(super().save, "save", folder)

    def load(self, folder: Path) -> None:
        """Restores a state that any number of processes saved. Other machines need not have the folder."""
        self.start()
        self._all.together(super().load, "load", folder)
