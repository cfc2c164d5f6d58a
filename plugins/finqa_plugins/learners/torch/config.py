"""Options of the PyTorch learner."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_LAYERS = 1000
"""Largest number of layers of a model; a configuration with more is invalid."""


class TorchLearnerConfig(BaseModel):
    """Options of learner `torch`; settings that every learner has are in the learner's context."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda|cuda:\d{1,3})$",
        description="Device: cpu, cuda or cuda:N; auto: the last CUDA device (engines start at the first), else cpu.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Data type of the computation. auto: bfloat16 on cuda, and on CPUs with AVX512-BF16 or AMX for "
        "models above 32 million parameters, else float32. Trained weights are float32.",
    )
    publish_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Type of the model that full training (lora.rank 0) publishes for the engine; checkpoints keep "
        "float32. auto: that of the computation. Adapters are float32.",
    )
    tf32: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Matrix products of float32 tensors on cuda, such as those of LoRA layers, with inputs of 10 bits. "
        "auto: where the computation is in bfloat16, which keeps 7.",
    )
    head_dtype: Literal["auto", "float32", "model"] = Field(
        default="auto",
        description="Type of the logits that log-probabilities are made of. auto: float32, but for a head with an "
        "adapter; model: as the rest of the computation.",
    )
    packing: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Micro-batches as one row without padding, with attention restricted to each sequence. auto: "
        "if the model supports it; off: padded to the longest sequence.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; unset: the learner's share of the free cores."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    value_learning_rate: float = Field(
        default=2e-2,
        gt=0,
        description="Learning rate of the value head, for methods that have one: about how far one step moves a value.",
    )
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="Decay rates of AdamW's running averages.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Schedule of the learning rate; linear and cosine fall to 0 at total_steps."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the rate rises from 0 to its full value.")
    total_steps: int = Field(default=0, ge=0, description="Length of the schedule; needed by linear and cosine.")

    @property
    def device_use(self) -> Literal["none", "one", "several"]:
        """CUDA devices of the learner, for the placement plan."""
        return "none" if self.device == "cpu" else "one" if ":" in self.device else "several"

    @property
    def instead_of_bfloat16(self) -> str:
        """Option for devices without bfloat16, if the options would compute in it there; else empty."""
        return "dtype=float32" if self.dtype in ("auto", "bfloat16") else ""

    def rate_factor(self, step: int) -> float:
        """Share of the full learning rate that step number `step` (from 0) applies."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return 1.0 - progress if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))

    @model_validator(mode="after")
    def _check(self) -> TorchLearnerConfig:
        if self.schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise ValueError(f"schedule {self.schedule!r} needs total_steps above warmup_steps ({self.warmup_steps})")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), not {self.betas}")
        return self
