"""The learner: owns the weights, takes the step."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from finqa_cli.contracts import LearnerContext
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.types import Batch, LossSpec, PolicyVersion, Sample, UpdateReport
from finqa_plugins.torch_learner import state
from finqa_plugins.torch_learner.config import TorchLearnerConfig
from finqa_plugins.torch_learner.forward import Inputs, collate, predicting_states, state_logprobs
from finqa_plugins.torch_learner.losses import Loss, build_loss
from finqa_plugins.torch_learner.model import (
    PROJECTIONS,
    add_adapter,
    attends_fully,
    compute_dtype,
    fingerprint,
    load_base,
    pick_device,
)
from finqa_plugins.torch_learner.schedule import rate_factor
from finqa_plugins.torch_learner.values import ValueHead

_TOKENS_PER_SCORING_FORWARD = 16_384


class TorchLearner:
    """LoRA (rank > 0) or full training (rank 0) of one causal language model on one device.

    Trained weights and optimizer state are float32. On the CPU equal inputs give equal bits, for a given number of
    threads. Randomness (adapter initialisation, adapter dropout) follows from the seed and the step number alone, so
    that no other user of PyTorch's generator in this process can change the result.
    """

    def __init__(self, config: TorchLearnerConfig, context: LearnerContext) -> None:
        if context.temperature <= 0:
            raise ConfigError(
                f"Training needs a sampling temperature above 0, not {context.temperature}: greedy attempts are alike.",
                remedy="--temperature 1.0",
            )
        self._config = config
        self._context = context
        self._targets = tuple(dict.fromkeys(context.lora_target_modules)) or PROJECTIONS
        self._largest_norm = context.max_grad_norm if context.max_grad_norm > 0 else math.inf
        self._step = 0
        self._model: Any = None
        self._frozen: Any = None
        self._value_head: ValueHead | None = None

    def start(self) -> None:
        """Loads the model, adds the adapter and makes the optimizer. Idempotent."""
        if self._model is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by names that it is giving up
                self._start()

    def update(self, batch: Batch, loss: LossSpec) -> UpdateReport:
        """One AdamW step on the weighted sum of token losses divided by `batch.loss_tokens`.

        Raises:
            ConfigError: The loss or one of its parameters is unknown.
            FinqaError: Nothing carries loss, or loss or gradient is not finite; the weights are as they were.
            ValueError: Some samples carry proximal or reference log-probabilities and others do not, or none does
                and the loss needs them; or one lacks values or returns that it needs.
        """
        built = build_loss(loss)
        built.check(batch.samples)
        if batch.loss_tokens < 1:
            raise FinqaError("The batch has no token with loss, so there is nothing to learn from.")
        self.start()
        head = self._values() if built.value_term is not None else None
        began = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        try:
            metrics = self._accumulate(batch, built)
            norm = self._clip()
            if head is not None:
                metrics["value_grad_norm"] = head.clip(self._largest_norm)
            if not all(map(math.isfinite, (metrics["loss"], norm, metrics.get("value_grad_norm", 0.0)))):
                raise FinqaError(
                    f"Step {self._step} was not taken: loss {metrics['loss']}, gradient norm {norm}.",
                    remedy="lower --lr, or look at the trajectories of this step",
                )
            factor = rate_factor(self._config, self._step)
            rate = self._context.learning_rate * factor
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
            if head is not None:
                head.step(self._config.value_learning_rate * factor)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            if head is not None:
                head.clear()
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

    def logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """[N][L] log-probability of each masked token at the rollout temperature, without dropout; 0.0 elsewhere."""
        self.start()
        return self._score(self._causal, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """As `logprobs`, under the base model: the adapter is switched off meanwhile.

        With rank 0 there is none, and a frozen copy of the base model is loaded at the first call and kept: as much
        memory again as its weights take in the computation's dtype.
        """
        self.start()
        if self._context.lora_rank > 0:
            with self._model.disable_adapter():
                return self._score(self._causal, samples)
        if self._frozen is None:
            frozen = load_base(self._context.model, dtype=self._dtype, device=self._device)
            self._frozen = frozen.requires_grad_(False).eval()
        return self._score(self._frozen, samples)

    def values(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """[N][L] value of the state in which each masked token was sampled, without dropout; 0.0 elsewhere."""
        self.start()
        return self._score(self._causal, samples, self._values())

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes a PEFT adapter, or with rank 0 a complete model folder, in place of whatever `folder` was.

        Raises:
            StorageError: The disk is full or may not be written to.
        """
        self.start()
        if self._context.lora_rank > 0:
            state.publish_adapter(self._model, folder)
            return PolicyVersion(number=number, model=self._context.model, adapter=folder)
        state.publish_model(self._model, self._context.model, folder)
        return PolicyVersion(number=number, model=str(folder))

    def save(self, folder: Path) -> None:
        """Writes trained weights, optimizer moments, step number and identity, and the value head if there is one.

        Raises:
            StorageError: The disk is full or may not be written to.
        """
        self.start()
        state.save(folder, self._identity, self._step, self._trained, self._optimizer)
        if self._value_head is not None:
            self._value_head.save(folder)

    def load(self, folder: Path) -> None:
        """Continues where the learner that saved `folder` was; on the CPU to the bit.

        Raises:
            ConfigError: It belongs to another base model, rank, alpha or set of target modules, or it is damaged.
        """
        self.start()
        head = ValueHead.load(folder, self._width, self._device)
        self._step = state.load(folder, self._identity, self._trained, self._optimizer)
        self._value_head = head

    def _start(self) -> None:
        if self._config.threads:
            torch.set_num_threads(self._config.threads)
        self._device = pick_device(self._config)
        self._dtype = compute_dtype(self._config, self._device)
        adapts = self._context.lora_rank > 0
        base = load_base(self._context.model, dtype=self._dtype if adapts else torch.float32, device=self._device)
        self._identity = state.Identity(
            base=fingerprint(base),
            lora_rank=self._context.lora_rank,
            lora_alpha=self._context.lora_alpha if adapts else 0,
            lora_target_modules=tuple(sorted(self._targets)) if adapts else (),
        )
        model = add_adapter(base, self._context, self._targets) if adapts else base
        self._causal = base
        self._width = int(base.get_output_embeddings().weight.shape[1])
        self._shares_prefix = attends_fully(base) and not self._context.gradient_checkpointing
        if self._context.gradient_checkpointing:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._trained = {name: part for name, part in model.named_parameters() if part.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=self._context.learning_rate,
            betas=self._config.betas,
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        self._model = model

    def _values(self) -> ValueHead:
        """The value head; only methods that have a value function ask for it, so only they have one."""
        if self._value_head is None:
            self._value_head = ValueHead(self._width, self._device)
        return self._value_head

    def _score(
        self, causal: Any, samples: Sequence[Sample], head: ValueHead | None = None
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities, or with a head its values."""
        result = [(0.0,) * len(sample.token_ids) for sample in samples]
        for rows in _scoring_batches(samples):
            inputs = self._collate([samples[row] for row in rows])
            with torch.no_grad(), self._mode(training=False):
                states = predicting_states(causal, inputs)
                temperature = self._context.temperature
                found = head(states) if head else state_logprobs(causal, states, inputs.targets, temperature)[0]
            numbers = iter(found.tolist())
            for row in rows:
                result[row] = tuple(next(numbers) if masked else 0.0 for masked in samples[row].loss_mask)
        return tuple(result)

    def _accumulate(self, batch: Batch, loss: Loss) -> dict[str, float]:
        temperature = self._context.temperature if loss.of_rollouts else 1.0
        sums: dict[str, torch.Tensor] = {}
        sequence_sums: dict[str, torch.Tensor] = {}
        maxima: dict[str, torch.Tensor] = {}
        sequences = 0
        with self._mode(training=True):
            for rows in batch.microbatches:
                bearing = [batch.samples[row] for row in rows if any(batch.samples[row].loss_mask)]
                if not bearing:
                    continue
                inputs = self._collate(bearing)
                states = predicting_states(self._causal, inputs)
                logprobs, entropy = state_logprobs(
                    self._causal, states, inputs.targets, temperature, entropy_gradient=loss.entropy_gradient
                )
                part = loss.function(logprobs, entropy, inputs)
                if loss.value_term is not None:
                    part = part.plus(*loss.value_term(self._values()(states), inputs))
                (part.loss / batch.loss_tokens).backward()  # type: ignore[no-untyped-call]
                scalars = {**part.sums, "loss": part.loss.detach(), "entropy": entropy.detach().sum()}
                for name, value in scalars.items():
                    sums[name] = sums[name] + value if name in sums else value
                sequences += len(bearing)
                for name, value in part.sequence_sums.items():
                    sequence_sums[name] = sequence_sums[name] + value if name in sequence_sums else value
                for name, value in part.maxima.items():
                    maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value
        metrics = {name: float(value) / batch.loss_tokens for name, value in sums.items()}
        metrics |= {name: float(value) / sequences for name, value in sequence_sums.items()}
        return metrics | {name: float(value) for name, value in maxima.items()}

    def _collate(self, samples: Sequence[Sample]) -> Inputs:
        return collate(samples, self._device, share_prefix=self._shares_prefix)

    def _clip(self) -> float:
        """Global gradient norm; gradients are scaled down to `max_grad_norm`, and left alone when it is 0."""
        return float(torch.nn.utils.clip_grad_norm_(self._trained.values(), self._largest_norm))

    @contextlib.contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        self._model.train(training)
        mixed = self._context.lora_rank == 0 and self._dtype != torch.float32
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.autocast(self._device.type, self._dtype, enabled=mixed):
            torch.manual_seed((self._context.seed * 1_000_003 + self._step) % 2**63)
            yield


def _scoring_batches(samples: Sequence[Sample]) -> Iterator[list[int]]:
    bearing = [index for index, sample in enumerate(samples) if any(sample.loss_mask)]
    order = sorted(bearing, key=lambda index: -len(samples[index].token_ids))
    start = 0
    while start < len(order):
        rows = max(1, _TOKENS_PER_SCORING_FORWARD // max(1, len(samples[order[start]].token_ids)))
        yield order[start : start + rows]
        start += rows
