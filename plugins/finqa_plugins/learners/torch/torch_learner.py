"""The PyTorch learner: owns the weights, computes gradients and takes optimizer steps."""

from __future__ import annotations

import contextlib
import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Learner, LearnerContext, LearnerEvents
from finqa_cli.errors import ConfigError, DeviceMemoryError, FinqaError
from finqa_cli.types import Batch, FloatRow, Loss, PolicyVersion, Sample, UpdateReport
from finqa_plugins.learners.torch import micro_batches, state
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed import sharding
from finqa_plugins.learners.torch.distributed.process_group import SingleProcess, on_device, release_memory
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward
from finqa_plugins.learners.torch.forward import Inputs, collate, scoring_batches
from finqa_plugins.learners.torch.frozen_weights import FrozenWeights
from finqa_plugins.learners.torch.loss_functions import check_samples, find_function
from finqa_plugins.learners.torch.parts import before_each_layer
from finqa_plugins.learners.torch.step_metrics import StepMetrics, merge_metrics
from finqa_plugins.learners.torch.trained_model import build_model, check_context, frozen_base, publish_dtype
from finqa_plugins.learners.torch.value_model import ValueHead, value_loss

Result = TypeVar("Result")

_APART = 2**40
"""Difference between the dropout seeds of two processes, larger than any number of steps."""


class TorchLearner(Learner):
    """LoRA (rank > 0) or full training (rank 0) of one causal language model, with one device per process.

    Trained weights and optimizer state are float32. On the CPU equal inputs give equal bits, for a given number of
    threads. Randomness (adapter initialisation, adapter dropout) depends on the seed, the step number and the rank of
    the process alone, so that other users of PyTorch's generator in this process cannot change the result.

    If the device's memory is full, the results of the current call are dropped, the limit of micro-batches becomes half
    the size that failed, separately for steps and for scoring, and the call starts again. With several processes this
    is an error, because the others wait in a collective operation; a resumed run begins with the smaller limit.

    Each of several processes has a learner, and all must get the same calls at the same time (`DistributedLearner`).
    Their result is that of one process except for rounding, and for adapter dropout, which each samples for itself.
    Every process gets all scores; the first writes the files.
    """

    keeps_reference = True
    has_value_function = True
    starts_processes = True
    loads_model = True

    def __init__(
        self, config: TorchLearnerConfig, context: LearnerContext, processes: SingleProcess | None = None
    ) -> None:
        if context.temperature <= 0:
            raise ConfigError(
                f"Training needs a sampling temperature above 0, not {context.temperature}: greedy "
                "attempts are identical.",
                remedy="--temperature 1.0",
            )
        self._config = config
        self._context = context
        self._processes = processes or SingleProcess()
        self._largest_norm = context.max_grad_norm if context.max_grad_norm > 0 else math.inf
        self._step = 0
        self._model: Any = None
        self._frozen: PolicyForward | None = None
        self._value_head: ValueHead | None = None
        self._resting: FrozenWeights | None = None
        self._events: LearnerEvents | None = None
        self._budget = 0
        self._scoring_budget = 0
        self._tried: tuple[Sequence[int], Sequence[Sample], bool] | None = None
        self._place = 0, 0

    def report_to(self, events: LearnerEvents) -> None:
        """Reports each time that the device's memory was full, and in a single process the parts of each call."""
        self._events = events

    def check(self) -> None:
        """Checks the model by its configuration; see `check_context`."""
        check_context(self._context)

    def start(self) -> None:
        """Loads the model, adds the adapter and makes the optimizer. Idempotent."""
        if self._model is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PEFT uses names that transformers deprecates
                with micro_batches.named("the model is loaded", "the learner's device"):
                    self._start()

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """One AdamW step on the weighted sum of token losses divided by `batch.loss_tokens`.

        Raises:
            ConfigError: The loss or one of its parameters is unknown.
            DataError: A sample is longer than the model has positions for.
            FinqaError: No token has loss, or loss or gradient is not finite; the weights are unchanged.
            DeviceMemoryError: A single sequence does not fit into the device's memory, or one of several processes ran
                out of memory.
            ValueError: Some samples carry proximal or reference log-probabilities and others do not, or none does
                and the loss needs them; or one lacks values or returns that it needs.
        """
        find_function(loss)
        check_samples(loss, batch.samples)
        if batch.loss_tokens < 1:
            raise FinqaError("The batch has no token with loss, so there is nothing to learn from.")
        self.start()
        self._built.check_lengths(batch.samples)
        head = self._values() if loss.needs_values else None
        began = time.perf_counter()
        try:
            metrics = self._with_memory("update", lambda: self._gradient(batch, loss))
            norm = metrics.pop("grad_norm")
            if not _finite(metrics, norm):
                raise self._not_finite(batch, loss, metrics["loss"], norm)
            factor = self._config.rate_factor(self._step)
            rate = self._context.learning_rate * factor
            self._optimizer.param_groups[0]["lr"] = rate
            with micro_batches.named("the optimizer takes its step", self._device):
                self._optimizer.step()
                if head is not None:
                    head.step(self._config.value_learning_rate * factor)
        finally:
            self._clear()
            release_memory(self._device)
        self._processes.gather(
            None
        )  # the first process may wake an engine on any device: all must have released memory
        self._step += 1
        return UpdateReport(
            loss=metrics.pop("loss"),
            grad_norm=norm,
            learning_rate=rate,
            tokens=sum(len(sample.token_ids) for sample in batch.samples),
            loss_tokens=batch.loss_tokens,
            seconds=time.perf_counter() - began,
            metrics=metrics,
        )

    def rehearse(self, batch: Batch, loss: Loss) -> float | None:
        """Seconds of the gradient of a batch, which is dropped; None with several processes."""
        self.start()
        if self._processes.size > 1:
            return None
        self._built.check_lengths(batch.samples)
        began = time.perf_counter()
        try:
            self._with_memory("update", lambda: self._gradient(batch, loss))
        finally:
            self._clear()
            release_memory(self._device)
        return time.perf_counter() - began

    def packs(self) -> bool:
        """Whether micro-batches are rows without padding."""
        self.start()
        return self._packs

    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """[N][L] log-probability of each masked token at the rollout temperature, without dropout; 0.0 elsewhere."""
        self.start()
        return self._score(self._forward, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """[N][L] log-probabilities like `logprobs`, under the base model, with the adapter disabled.

        With rank 0 there is no adapter: a frozen copy of the base model is loaded at the first call and kept. It needs
        the memory of its weights in the computation's dtype.
        """
        self.start()
        if self._context.lora_rank > 0:
            with self._model.disable_adapter():
                return self._score(self._forward, samples)
        if self._frozen is None:
            with micro_batches.named("the reference model is loaded", self._device):
                self._frozen = frozen_base(self._built, self._context, self._processes)
        return self._score(self._frozen, samples)

    def values(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """[N][L] value of the state in which each masked token was sampled, without dropout; 0.0 elsewhere."""
        self.start()
        return self._score(self._forward, samples, self._values())

    def sleep(self) -> None:
        """Moves the frozen weights of a model on CUDA to main memory; those of several processes stay. Idempotent."""
        if self._resting is not None:
            self._resting.sleep()
            release_memory(self._device)

    def wake(self) -> None:
        """Moves the frozen weights back to the device. Idempotent."""
        if self._resting is not None:
            with micro_batches.named("the learner's weights return", self._device):
                self._resting.wake()

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes a PEFT adapter, or with rank 0 a complete model in `publish_dtype`; replaces `folder`.

        Raises:
            StorageError: The disk is full or is not writable.
        """
        self.start()
        adapts = self._context.lora_rank > 0
        self._with_memory("publish", lambda: self._write_policy(folder))
        self._release_memory()
        if adapts:
            return PolicyVersion(number=number, model=self._context.model, adapter=folder)
        return PolicyVersion(number=number, model=str(folder))

    def save(self, folder: Path) -> None:
        """Writes trained weights, optimizer moments, step number and identity, and the value head if there is one.

        Raises:
            StorageError: The disk is full or is not writable.
        """
        self.start()
        self._with_memory("save", lambda: self._write_state(folder))
        self._release_memory()

    def load(self, folder: Path) -> None:
        """Restores the state that a learner saved in `folder`; training then continues, on the CPU bit for bit.

        Raises:
            ConfigError: The state has another base model, rank, alpha or set of target modules, or is damaged.
        """
        self.start()
        loading = micro_batches.named("a saved state is loaded", self._device)
        with loading, self._processes.received(folder) as there:
            head = ValueHead.load(there, self._built.width, self._device)
            self._step = state.load(there, self._built.identity, self._trained, self._optimizer)
        self._value_head = head

    def _start(self) -> None:
        if self._config.threads:
            torch.set_num_threads(self._config.threads)
        made = build_model(self._config, self._context, self._processes)
        self._built, self._device, self._packs = made, made.device, made.packs
        self._causal, self._forward = made.causal, made.forward
        self._budget = self._scoring_budget = made.tokens_at_once
        self._trained = {name: part for name, part in made.model.named_parameters() if part.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=self._context.learning_rate,
            betas=self._config.betas,
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        self._model = made.model
        if self._processes.size == 1 and self._device.type == "cuda":
            self._resting = FrozenWeights(
                made.model.parameters(),
                to_host=lambda weight: weight.cpu().pin_memory(),
                to_device=lambda weight: weight.to(self._device),
            )
        if self._processes.size == 1:  # others would wait for a process that leaves a call
            before_each_layer(made.model, lambda: self._begin_part(*self._place))

    def _begin_part(self, done: int, total: int) -> None:
        """Reports that a micro-batch begins, or a layer of it; raises if the call has to end."""
        self._place = done, total
        if self._events is not None and self._processes.size == 1:
            self._events.part(done, total)

    def _values(self) -> ValueHead:
        """The value head, made at first use: only methods with a value function need it."""
        if self._value_head is None:
            self._value_head = ValueHead(self._built.width, self._device)
        return self._value_head

    def _score(
        self, forward: PolicyForward, samples: Sequence[Sample], head: ValueHead | None = None
    ) -> tuple[FloatRow, ...]:
        """Log-probabilities, or with a head its values."""
        self._built.check_lengths(samples)
        return self._with_memory("scoring", lambda: self._score_once(forward, samples, head))

    def _score_once(
        self, forward: PolicyForward, samples: Sequence[Sample], head: ValueHead | None
    ) -> tuple[FloatRow, ...]:
        result = [np.zeros(len(sample.token_ids), dtype=np.float32) for sample in samples]
        whole = scoring_batches(samples, packed=self._packs, most=self._context.token_budget)
        batches = micro_batches.cut(whole, samples, self._scoring_budget, packed=self._packs, pairs=False)
        own: dict[int, FloatRow] = {}
        for number, (rows, idle) in enumerate(self._own(batches, samples)):
            self._tried = rows, samples, False
            self._begin_part(number, len(batches))
            inputs = self._collate([samples[row] for row in rows])
            with torch.no_grad(), self._mode(training=False):
                found = head(forward.states(inputs)) if head else forward(inputs, self._context.temperature)[1]
            if idle:
                continue
            numbers = np.split(found.float().cpu().numpy(), np.cumsum(inputs.lengths)[:-1])
            own |= dict(zip(rows, numbers, strict=True))
        sharding.reshard(forward)
        release_memory(self._device)
        for part in self._processes.gather(own):
            for row, scored in part.items():
                result[row][samples[row].loss_mask] = scored
        return tuple(result)

    def _gradient(self, batch: Batch, loss: Loss) -> dict[str, float]:
        """Computes clipped gradients; returns the metrics, including `grad_norm` and any `value_grad_norm`."""
        head = self._values() if loss.needs_values else None
        self._clear()
        metrics = self._accumulate(batch, loss)
        if head is not None:
            head.join_gradients(self._processes.add)
            metrics["value_grad_norm"] = head.clip(self._largest_norm)
        return metrics | {"grad_norm": self._clip()}

    def _accumulate(self, batch: Batch, loss: Loss) -> dict[str, float]:
        temperature = self._context.temperature if loss.at_rollout_temperature else 1.0
        function, found = find_function(loss), StepMetrics()
        bearing = [[row for row in rows if batch.samples[row].loss_mask.any()] for rows in batch.microbatches]
        whole = [rows for rows in bearing if rows]
        batches = micro_batches.cut(whole, batch.samples, self._budget, packed=self._packs, pairs=loss.of_pairs)
        with self._mode(training=True):
            for number, (rows, idle) in enumerate(self._own(batches, batch.samples)):
                self._tried = rows, batch.samples, loss.of_pairs
                self._begin_part(number, len(batches))
                inputs = self._collate([batch.samples[row] for row in rows])
                self._built.recomputation.prepare(inputs.token_ids.numel())
                states, logprobs, entropy = self._forward(inputs, temperature, loss.needs_entropy_gradient)
                if idle:
                    (0.0 * logprobs.sum()).backward()
                    continue
                part = function(loss, logprobs, entropy, inputs)
                if isinstance(loss, PolicyGradientLoss) and loss.needs_values:
                    part = part.plus(*value_loss(loss, self._values()(states), inputs))
                (part.loss / batch.loss_tokens).backward()  # type: ignore[no-untyped-call]
                found.add(part, entropy, len(rows))
        return merge_metrics(self._processes.gather(found.portable())).metrics(batch.loss_tokens)

    def _not_finite(self, batch: Batch, loss: Loss, value: float, norm: float) -> FinqaError:
        """The error for a loss that is not finite: computes micro-batches one by one, and names the first such one."""

        def finite(rows: Sequence[int]) -> bool:
            one = replace(batch, microbatches=(tuple(rows),))
            metrics = self._with_memory("update", lambda: self._gradient(one, loss))
            return _finite(metrics, metrics.pop("grad_norm"))

        check = micro_batches.FiniteCheck(finite=finite, logprobs=self.logprobs, by_row=not loss.of_pairs)
        cause = micro_batches.describe_nonfinite(batch, check)
        return FinqaError(
            f"Step {self._step} was skipped: loss {value}, gradient norm {norm}. {cause}",
            remedy="lower --lr, or look at the trajectories of this step",
        )

    def _write_policy(self, folder: Path) -> None:
        adapts = self._context.lora_rank > 0
        leads, trained = self._processes.leads, self._trained if adapts else None
        dtype = None if adapts else publish_dtype(self._config, self._built.dtype)
        weights = sharding.whole_state(self._model, trained, keep=leads, dtype=dtype)
        if leads and adapts:
            state.publish_adapter(self._model, folder, weights)
        elif leads:
            state.publish_model(self._model, self._context.model, folder, weights, dtype)

    def _write_state(self, folder: Path) -> None:
        leads = self._processes.leads
        weights = sharding.gather_tensors(self._trained, keep=leads)
        moments = sharding.gather_tensors(state.moments(self._trained, self._optimizer), keep=leads)
        if not leads:
            return
        state.save(folder, self._built.identity, self._step, weights, moments)
        if self._value_head is not None:
            self._value_head.save(folder)

    def _with_memory(self, work: str, attempt: Callable[[], Result]) -> Result:
        """Runs `attempt`, and runs it again with smaller micro-batches each time that the device's memory is full.

        Raises:
            DeviceMemoryError: The work cannot be cut further, or there are several processes.
        """
        failures = 0
        while True:
            self._tried = None
            try:
                return attempt()
            except RuntimeError as error:
                if not micro_batches.is_out_of_memory(error):
                    raise
                reason = micro_batches.first_line(error)
            # here the frames of the attempt are gone, and with them their tensors
            failures += 1
            self._make_room(work, reason, failures)

    def _make_room(self, work: str, reason: str, failures: int) -> None:
        self._clear()
        gc.collect()
        release_memory(self._device)
        facts: dict[str, Any] = {"work": work, "reason": reason}
        alone = self._processes.size == 1
        if self._tried is None:  # nothing to cut, but it may fit after cached memory was released
            if failures > 1 or not alone:
                raise DeviceMemoryError(
                    f"{self._device} is out of memory ({work}: {reason}).", remedy=micro_batches.MORE_ROOM
                )
        else:
            rows, samples, pairs = self._tried
            if len(micro_batches.units(rows, samples, pairs=pairs)) == 1:
                raise micro_batches.too_long(rows, samples, self._device, reason)
            tokens = micro_batches.count_tokens(rows, samples, packed=self._packs)
            budget = tokens // 2
            if not alone:
                raise DeviceMemoryError(
                    f"The memory of {self._device} is too small for a micro-batch of {tokens:,} tokens ({work}: "
                    f"{reason}). A resumed run takes at most {budget:,}.",
                    token_budget=budget,
                )
            facts["tokens"] = tokens
            if work == "scoring":  # it may need more than a step, or run before an engine has released the device
                self._scoring_budget = facts["scoring_budget"] = budget
            else:
                self._budget = facts["token_budget"] = budget
        if self._events is not None:
            self._events.event("out_of_memory", facts)

    def _release_memory(self) -> None:
        """Releases cached memory, in all processes before it returns in the first."""
        release_memory(self._device)
        self._processes.gather(None)

    def _own(self, batches: Sequence[Sequence[int]], samples: Sequence[Sample]) -> Iterator[tuple[Sequence[int], bool]]:
        rank, processes = self._processes.rank, self._processes.size
        return micro_batches.own_micro_batches(batches, samples, rank=rank, processes=processes)

    def _clear(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        if self._value_head is not None:
            self._value_head.clear()

    def _collate(self, samples: Sequence[Sample]) -> Inputs:
        return collate(samples, self._device, packed=self._packs)

    def _clip(self) -> float:
        """Global gradient norm; gradients are scaled down to `max_grad_norm`, or unchanged if it is 0."""
        return float(sharding.full_tensor(torch.nn.utils.clip_grad_norm_(self._trained.values(), self._largest_norm)))

    @contextlib.contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        self._model.train(training)
        mixed = self._context.lora_rank == 0 and self._built.dtype != torch.float32
        keeps = self._processes.mesh(self._device) is None  # cached casts of sharded weights lose gradients
        devices = [self._device] if self._device.type == "cuda" else []
        with (
            on_device(self._device),
            torch.random.fork_rng(devices=devices),
            torch.autocast(self._device.type, self._built.dtype, enabled=mixed, cache_enabled=keeps),
        ):
            torch.manual_seed((self._context.seed * 1_000_003 + self._step + _APART * self._processes.rank) % 2**63)
            yield


def _finite(metrics: Mapping[str, float], norm: float) -> bool:
    return all(map(math.isfinite, (metrics["loss"], norm, metrics.get("value_grad_norm", 0.0))))
