"""Learners own and update the trainable weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.types import Batch, FloatRow, Loss, PolicyVersion, Sample, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerContext:
    """Context of a learner.

    Attributes:
        model: Folder or hub id of the base model.
        learning_rate: AdamW step size.
        lora_rank: 0 trains all weights.
        lora_alpha: Scale numerator of the adapter.
        lora_dropout: Dropout on the adapter's input.
        lora_target_modules: Names of the linear layers that get an adapter.
        gradient_checkpointing: Recompute activations in the backward pass. None: the learner chooses, by its memory.
        max_grad_norm: Global gradient norm above which gradients are scaled down to it.
        temperature: Sampling temperature of the rollouts; log-probabilities are taken at the same temperature.
        seed: Seed of the initialisation and of dropout.
        token_budget: Most tokens of a forward pass when the learner divides the samples itself (scoring); 0: chosen by
            the learner.
        processes: Number of processes that train together. The first is this one; the learner starts the others.
        devices: CUDA device index of each learner process, as numbered in this process; empty: chosen by the learner.
        logs: Folder for the output of processes that the learner starts; None writes it to stderr.
        cluster: Address of the Ray cluster, for a learner that runs on its nodes (`cluster.address`).
    """

    model: str
    learning_rate: float
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    lora_target_modules: tuple[str, ...] = ()
    gradient_checkpointing: bool | None = None
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    token_budget: int = 0
    processes: int = 1
    devices: tuple[int, ...] = ()
    logs: Path | None = None
    cluster: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerEvents:
    """Receives events of a learner. Called in any thread.

    Attributes:
        event: Receives name and fields of an event for the run's records, such as a smaller token budget.
        failed: Receives the error if another process of the learner has ended, even between two calls.
        part: Called in the thread of the call, before each part of `update`, `logprobs`, `reference_logprobs` and
            `values` (such as a micro-batch or a layer of it), with the finished and with all micro-batches of the call.
            It raises if the call has to end: the learner then drops what it computed, takes no step, and passes the
            exception on. Learners of several processes need not call it.
    """

    event: Callable[[str, Mapping[str, Any]], None]
    failed: Callable[[FinqaError], None]
    part: Callable[[int, int], None] = lambda done, total: None


class Learner(ABC):
    """Base class of all learners, constructed as `Learner(config, context)`. Methods block; callers use a thread.

    The class attributes, False by default, declare optional features.
    """

    keeps_reference: ClassVar[bool] = False
    """The learner keeps the policy that training began from, and implements `reference_logprobs`."""
    has_value_function: ClassVar[bool] = False
    """The learner implements `values`. `update` trains the value function, and `save` and `load` include it."""
    starts_processes: ClassVar[bool] = False
    """The learner can train in several processes (`LearnerContext.processes`), and ends them in `close`."""
    loads_model: ClassVar[bool] = False
    """The learner reads the model's files: those of a hub id are then in the hub's cache before `start`."""

    def check(self) -> None:
        """Check that the learner can train its model, before anything starts. Reads configurations, never weights.

        The default checks nothing, and leaves it to `start`.

        Raises:
            ConfigError: It cannot.
        """
        return

    @abstractmethod
    def start(self) -> None:
        """Load the model and create the trainable parameters. Idempotent.

        Raises:
            ConfigError: The model folder is incomplete, or a target module does not exist.
        """

    @abstractmethod
    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """Take one optimizer step over the batch. The gradient does not depend on the division into micro-batches.

        Raises:
            ConfigError: The learner has no function for the loss.
            FinqaError: The loss is not finite; the weights are unchanged.
        """

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """`[N][L]` log-probability of each masked token under the current weights, 0.0 elsewhere."""

    @abstractmethod
    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Write the current weights (a PEFT adapter, or the whole model) so that an engine can load them.

        Args:
            folder: Folder to write to.
            number: Number of the new version.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights, optimizer state and random state, so that training can continue exactly."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote.

        Raises:
            ConfigError: The state belongs to another base model, rank or set of target modules.
        """

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """`[N][L]` log-probability of each masked token under the reference policy, 0.0 elsewhere.

        The temperature is that of `logprobs`. Weights, gradients and random state do not change.

        Raises:
            ConfigError: The learner does not keep the reference policy.
        """
        raise ConfigError(f"Learner {type(self).__name__} keeps no reference policy.")

    def rehearse(self, batch: Batch, loss: Loss) -> float | None:
        """Return the seconds that the gradient of a batch takes, for an estimate of the length of a run.

        Weights, optimizer, number of steps and random state do not change. Default: None, it cannot be measured.
        """
        return None

    def values(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """`[N][L]` value of the state in which each masked token was sampled, 0.0 elsewhere.

        Raises:
            ConfigError: The learner has no value function.
        """
        raise ConfigError(f"Learner {type(self).__name__} has no value function.")

    def packs(self) -> bool:
        """Whether the learner processes a micro-batch of this model as one row without padding. Starts the learner.

        If True, a micro-batch costs the sum of the tokens of its samples; if False, the number of its samples times the
        longest one. Default: False.
        """
        return False

    def sleep(self) -> None:
        """Free device memory for an engine on the same device, until `wake`. Called when no other call is in progress.

        `publish`, `save` and `load` must work meanwhile; `update` and scoring are not called. By default it frees
        nothing.
        """
        return

    def wake(self) -> None:
        """Take back the device memory that `sleep` freed. Idempotent."""
        return

    def report_to(self, events: LearnerEvents) -> None:
        """Send events to this receiver. By default there are no events."""
        return

    def close(self) -> None:
        """End the processes that the learner started, by default none. Idempotent; no other call follows."""
        return


class LearnerProcesses(ABC):
    """The processes that `torchrun` started, including this one. Their learners train together."""

    leads: bool
    """This is the first process. It runs the command, and its learners make the other processes take part."""

    @abstractmethod
    def serve(self, model: str = "") -> int:
        """Take part in each call of the learners of the first process. Called in all other processes.

        Args:
            model: Folder or hub id of the base model on this machine; empty: the model that the first process names.

        Returns:
            The exit status, once the first process has closed or ended. After a failure in this process the call may
            end the process instead of returning.
        """

    @abstractmethod
    def close(self) -> None:
        """End `serve` in the other processes. Called in the first process. Does nothing if the group has failed."""
