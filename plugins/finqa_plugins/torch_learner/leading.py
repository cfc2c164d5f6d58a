"""One learner of several processes: the first has each call made on all of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from finqa_cli.contracts import LearnerContext
from finqa_cli.types import Batch, LossSpec, PolicyVersion, Sample, UpdateReport
from finqa_plugins.torch_learner.config import TorchLearnerConfig
from finqa_plugins.torch_learner.distributed import Processes
from finqa_plugins.torch_learner.learner import TorchLearner

_joined: LearnerProcesses | None = None


def make_learner(config: TorchLearnerConfig, context: LearnerContext) -> TorchLearner:
    """The learner of this process, or of all that it leads."""
    return LeadingLearner(config, context, _joined) if _joined else TorchLearner(config, context)


def join() -> LearnerProcesses:
    """Joins the processes that torchrun started, once; learners that are made from now on are shared by them."""
    global _joined  # which processes there are is a fact about this one
    if _joined is None:
        _joined = LearnerProcesses()
    return _joined


class LearnerProcesses(Processes):
    """Those that share a learner."""

    def serve(self) -> int:
        """Does what the first process has this one do, until that closes or is gone; the exit status.

        It is 0 after a failure as well, where that breaks the connections and so reaches the first process, which then
        has the time to clean up: of any other torchrun ends all processes. NCCL waits for who is gone; there it is 1.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the first decides when to stop, and needs the others until then
        learner: TorchLearner | None = None
        while call := self.heard():
            name, arguments = call
            try:
                if name == "start":
                    config, context = arguments
                    learner = TorchLearner(config, context, self)
                    learner.start()
                else:
                    getattr(learner, name)(*arguments)
            except Exception as error:
                self.failed(error)
                if not self.over_nccl:
                    return 0
                print(f"error: process {self.rank + 1}: {error}", file=sys.__stderr__)
                return 1
        self.close()
        return 0


class LeadingLearner(TorchLearner):
    """The learner in the first of several processes: what it is asked, all do."""

    def __init__(self, config: TorchLearnerConfig, context: LearnerContext, processes: Processes) -> None:
        super().__init__(config, context, processes)
        self._all = processes
        self._begun = False

    def start(self) -> None:
        """As a single process does."""
        if not self._begun:
            start = super().start
            self._all.together(lambda config, context: start(), "start", self._config, self._context)
            self._begun = True

    def update(self, batch: Batch, loss: LossSpec) -> UpdateReport:
        """As a single process does, within rounding: each takes a share of the micro-batches."""
        self.start()
        return self._all.together(super().update, "update", batch, loss)

    def logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """As a single process does."""
        self.start()
        return self._all.together(super().logprobs, "logprobs", samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """As a single process does."""
        self.start()
        return self._all.together(super().reference_logprobs, "reference_logprobs", samples)

    def values(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """As a single process does."""
        self.start()
        return self._all.together(super().values, "values", samples)

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """As a single process does, and the same files."""
        self.start()
        return self._all.together(super().publish, "publish", folder, number)

    def save(self, folder: Path) -> None:
        """As a single process does, and the same files."""
        self.start()
        self._all.together(super().save, "save", folder)

    def load(self, folder: Path) -> None:
        """As a single process does; any number of processes may have saved it. Every process reads the folder."""
        self.start()
        self._all.together(super().load, "load", folder)
