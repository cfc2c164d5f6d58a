"""Options of the `transformers` engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_PROMPT_THREADS = 4


class TransformersEngineConfig(BaseModel):
    """Options of the `transformers` engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device; auto: CUDA if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Data type of the computation; auto: bfloat16 on CUDA, and on CPUs with AVX512-BF16 or AMX for "
        "models above 32 million parameters, else float32",
    )
    head_dtype: Literal["float32", "model"] = Field(
        "float32",
        description="Data type of the logits, as the learner's head_dtype; model: that of the computation",
    )
    max_batch: int = Field(128, ge=1, description="Rows decoded together")
    lockstep: bool | None = Field(
        None,
        description="Start a batch only when every live episode waits for it, so that batches do not depend on "
        "timing; unset: yes on CPU, no on CUDA",
    )
    threads: int | None = Field(
        None, ge=1, description="Threads of torch, in the whole process; unset: this engine's share of the free cores"
    )
    prompt_threads: int = Field(
        1,
        ge=1,
        le=MAX_PROMPT_THREADS,
        description="On a CPU, parts of prompts that are computed in parallel, each with the threads of torch; "
        "useful for small models, which do not benefit from more threads of torch",
    )
    kv_cache_gb: float | None = Field(
        None,
        ge=0,
        description="Memory in GB for the keys and values of one batch, and the same again for those cached between "
        "turns; 0: recompute every prompt; unset: 2 on CPU, on CUDA half of the memory that "
        "gpu_memory_utilization leaves",
    )

    @property
    def device_use(self) -> Literal["none", "one"]:
        """CUDA devices of a replica, for the placement plan."""
        return "none" if self.device == "cpu" else "one"

    @property
    def instead_of_bfloat16(self) -> str:
        """Option for devices without bfloat16, if the options would compute in it there; else empty."""
        return "dtype=float32" if self.dtype in ("auto", "bfloat16") else ""
