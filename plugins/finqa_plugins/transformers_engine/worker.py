"""What the engine does in its worker thread: load, swap, generate, free."""

from __future__ import annotations

import gc

import structlog
import torch

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import PolicyVersion
from finqa_plugins.transformers_engine.adapter import AdapterSlot, Patch, read_adapter
from finqa_plugins.transformers_engine.config import TransformersEngineConfig
from finqa_plugins.transformers_engine.decode import Job
from finqa_plugins.transformers_engine.generator import Generator
from finqa_plugins.transformers_engine.model import CausalModel, fingerprint, load_model
from finqa_plugins.transformers_engine.waiting import WaitingRoom

log = structlog.get_logger(__name__)


class Worker:
    """Owns the model. Every method runs in the one worker thread; the attributes may be read from anywhere.

    Attributes:
        vocabulary: Number of ids that may be passed; 0 before `start`.
        max_context: Longest prompt plus completion; 0 before `start`.
    """

    def __init__(self, config: TransformersEngineConfig, context: EngineContext) -> None:
        self._config = config
        self._context = context
        self._generator: Generator | None = None
        self._slot: AdapterSlot | None = None
        self.vocabulary = 0
        self.max_context = 0

    def start(self) -> WaitingRoom:
        """Loads the base model as version 0; returns the rules by which batches become due.

        Raises:
            ConfigError: Something does not fit; see `load_model`.
        """
        if self._context.tensor_parallel_size > 1:
            raise ConfigError(
                "The transformers engine uses one device, but tensor_parallel_size is "
                f"{self._context.tensor_parallel_size}.",
                remedy="--engine vllm, or --tensor-parallel-size 1",
            )
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)
        self._device = _device(self._config.device)
        names = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        default = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        self._dtype = names.get(self._config.dtype, default)
        self._adopt(load_model(self._context.model, device=self._device, dtype=self._dtype))
        lockstep = self._config.lockstep
        return WaitingRoom(
            lockstep=self._device.type == "cpu" if lockstep is None else lockstep,
            wait_seconds=self._context.dispatch_wait_ms / 1000,
            enough=self._config.max_batch,
        )

    def run(self, jobs: list[Job], everyone: bool) -> None:
        """Sets every job's outcome; see `Generator.run`."""
        if self._generator is None:
            raise EngineError("The engine is closed.")
        self._generator.run([job for job in jobs if not job.abandoned], everyone=everyone)

    def load(self, policy: PolicyVersion) -> None:
        """Serves another version from now on.

        Raises:
            EngineError: It cannot be loaded; the old version keeps serving.
        """
        if self._generator is None or self._slot is None:
            raise EngineError("The engine is closed.")
        try:
            if fingerprint(policy.model) != self._generator.model.fingerprint:
                model = load_model(policy.model, device=self._device, dtype=self._dtype, tokenizer=False)
                patches = self._patches(policy, model)
                self._adopt(model)
            else:
                patches = self._patches(policy, self._generator.model)
            self._slot.put(patches)
        except ConfigError as error:
            raise EngineError(
                f"Policy version {policy.number} cannot be loaded: {error.message}", remedy=error.remedy
            ) from error
        self._generator.reset(policy.number)
        log.info("engine_loaded", version=policy.number, adapter=str(policy.adapter) if policy.adapter else None)

    def close(self) -> None:
        """Frees the model."""
        self._generator = self._slot = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _patches(self, policy: PolicyVersion, model: CausalModel) -> list[Patch]:
        if policy.adapter is None:
            return []
        return read_adapter(policy.adapter, model.module, max_rank=self._context.lora_rank)

    def _adopt(self, model: CausalModel) -> None:
        self.vocabulary = model.vocabulary
        self.max_context = min(model.context, self._context.max_context or model.context)
        self._slot = AdapterSlot(model.module)
        self._generator = Generator(
            model, max_batch=self._config.max_batch, kv_bytes=self._kv_bytes(), max_context=self.max_context
        )

    def _kv_bytes(self) -> int:
        if self._config.kv_cache_gb is not None:
            return int(self._config.kv_cache_gb * (1 << 30))
        if self._device.type == "cpu":
            return 2 << 30
        _, total = torch.cuda.mem_get_info(self._device)
        free = int(total * self._context.gpu_memory_utilization) - torch.cuda.memory_allocated(self._device)
        return max(1 << 30, free // 2)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "The transformers engine was set to CUDA, but torch finds no CUDA device.",
            remedy="--set engine.options.device=cpu",
        )
    return torch.device(name)
