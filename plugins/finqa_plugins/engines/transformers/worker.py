"""The work of the engine's worker thread: load, swap, generate, free."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
import torch
from torch import nn

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import PolicyVersion
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.decode import Job
from finqa_plugins.engines.transformers.device_placement import (
    GIB,
    Need,
    choose_device,
    does_not_fit,
    known_parameters,
    need,
    room_on,
)
from finqa_plugins.engines.transformers.generator import Generator
from finqa_plugins.engines.transformers.lora_adapter import AdapterSlot, Patch, read_adapter
from finqa_plugins.engines.transformers.served_model import (
    CausalModel,
    check_finite,
    fingerprint,
    load_model,
    read_model,
    same_architecture,
)
from finqa_plugins.model_facts import is_out_of_memory
from finqa_plugins.precision import auto_dtype

Model = TypeVar("Model")

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
        self._device = torch.device("cpu")
        self._share = context.gpu_memory_utilization
        self._wide_head = config.head_dtype == "float32"
        self._threads: ThreadPoolExecutor | None = None
        self.vocabulary = 0
        self.max_context = 0

    def start(self) -> bool:
        """Loads the base model as version 0; returns whether batches are dispatched in lockstep, see `RequestQueue`.

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
        self._device = choose_device(
            self._config.device,
            replica=self._context.replica,
            replicas=self._context.replicas,
            cuda_devices=torch.cuda.device_count(),
            planned=self._context.devices,
        )
        if self._device.type == "cpu" and self._config.prompt_threads > 1:
            self._threads = ThreadPoolExecutor(self._config.prompt_threads, "finqa-engine-prompts")
        name = self._context.model
        named = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        self._dtype = named.get(self._config.dtype) or auto_dtype(self._device, known_parameters(name))
        self._adopt(
            self._within(
                name,
                room_on(self._device, share=self._share),
                lambda fits: load_model(
                    name, device=self._device, dtype=self._dtype, fits=fits, wide_head=self._wide_head
                ),
            )
        )
        lockstep = self._config.lockstep
        return self._device.type == "cpu" if lockstep is None else lockstep

    def run(self, jobs: list[Job], everyone: bool, interrupted: Callable[[], bool]) -> None:
        """Sets the outcome of every job or, if interrupted, of those that ended before; see `Generator.run`."""
        if self._generator is None:
            raise EngineError("The engine is closed.")
        waited_for = [job for job in jobs if not job.abandoned]
        self._generator.run(waited_for, everyone=everyone, interrupted=interrupted)

    def load(self, policy: PolicyVersion) -> None:
        """Serves another version from now on.

        The weights of a model with the same architecture are copied over the old ones, so that the device never
        contains both. With another architecture, both models exist until the new one is checked. The memory that the
        old one will release is not known, so the new one is loaded without a check that it fits.

        Raises:
            EngineError: The version cannot be loaded; the old version keeps serving.
        """
        if self._generator is None or self._slot is None:
            raise EngineError("The engine is closed.")
        try:
            served = self._generator.model
            source = fingerprint(policy.model)
            if source == served.fingerprint:
                patches = self._patches(policy, served)
            else:
                self._generator.release()  # on a CPU the new weights need the same memory
                new = self._within(policy.model, None, lambda fits: self._read(policy.model, served, fits))
                if isinstance(new, CausalModel):
                    patches = self._patches(policy, new)
                    self._adopt(new)
                else:
                    patches = self._patches(policy, served)
                    self._slot.replace(new.state_dict())
                    served.fingerprint = source
            self._slot.put(patches)
        except ConfigError as error:
            raise EngineError(
                f"Policy version {policy.number} cannot be loaded: {error.message}", remedy=error.remedy
            ) from error
        self._generator.reset(policy.number)
        # Log: Engine `transformers` serves a new policy version.
        log.info("engine_loaded", version=policy.number, adapter=str(policy.adapter) if policy.adapter else None)

    def sleep(self) -> None:
        """Moves the weights to main memory and frees keys and values, so that the learner can use the device."""
        if self._generator is None or self._slot is None:
            raise EngineError("The engine is closed.")
        self._generator.release()
        self._slot.move(torch.device("cpu"))
        self._empty_cache()

    def wake(self) -> None:
        """Moves the weights back to the device.

        Raises:
            EngineError: There is not enough memory on the device.
        """
        if self._generator is None or self._slot is None:
            raise EngineError("The engine is closed.")
        try:
            self._slot.move(self._device)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"The engine's weights do not fit on {self._device} together with the learner: {error}",
                remedy="finqa doctor, which predicts the memory of engine and learner",
            ) from error

    @property
    def reused_share(self) -> float:
        """See `TransformersEngine.reused_share`; 0 before the first prompt."""
        if self._generator is None or not self._generator.prompt_tokens:
            return 0.0
        return max(0.0, 1 - self._generator.computed_tokens / self._generator.prompt_tokens)

    def close(self) -> None:
        """Frees the model."""
        # Log: Engine `transformers` ends; `reused_share` of the prompt tokens were not computed again.
        log.info("engine_closed", reused_share=round(self.reused_share, 3))
        self._generator = self._slot = None
        if self._threads is not None:
            self._threads.shutdown()
        gc.collect()
        self._empty_cache()

    def _empty_cache(self) -> None:
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):  # by default a thread uses device 0, where this would allocate memory
                torch.cuda.empty_cache()

    def _read(self, reference: str, served: CausalModel, fits: Callable[[Any], None]) -> CausalModel | nn.Module:
        """Reads a model onto the device; with the architecture of `served` it stays in main memory, as a module."""
        source = fingerprint(reference)
        module = read_model(reference, dtype=self._dtype, fits=fits, tokenizer=False)
        check_finite(reference, module)
        if same_architecture(module, served.module):
            return module
        return CausalModel(module.to(self._device), self._device, self._dtype, source, wide_head=self._wide_head)

    def _within(self, reference: str, room: int | None, load: Callable[[Callable[[Any], None]], Model]) -> Model:
        """Returns what `load` loads. `load` calls its argument with the config, which checks that it fits `room` bytes.

        Raises:
            ConfigError: The model needs more than `room` (None: not known), or more than there is; or as `load` does.
        """
        needs: list[Need] = []

        def fits(config: Any) -> None:
            kv = self._config.kv_cache_gb
            needs[:] = [
                need(
                    config,
                    dtype=self._dtype,
                    max_batch=self._config.max_batch,
                    max_context=self._context.max_context,
                    kv_bytes=None if kv is None else int(kv * GIB),
                )
            ]
            if room is not None and needs[0].total > room:
                raise does_not_fit(reference, needs[0], room, device=self._device, dtype=self._dtype)

        try:
            return load(fits)
        except ConfigError:
            raise
        except Exception as error:
            if not (needs and is_out_of_memory(error)):
                raise
            raise does_not_fit(reference, needs[0], room, device=self._device, dtype=self._dtype) from error

    def _patches(self, policy: PolicyVersion, model: CausalModel) -> list[Patch]:
        if policy.adapter is None:
            return []
        return read_adapter(policy.adapter, model.module, max_rank=self._context.lora_rank)

    def _adopt(self, model: CausalModel) -> None:
        self.vocabulary = model.vocabulary
        self.max_context = min(model.context, self._context.max_context or model.context)
        self._slot = AdapterSlot(model.module)
        self._generator = Generator(
            model,
            max_batch=self._config.max_batch,
            kv_bytes=self._kv_bytes(),
            max_context=self.max_context,
            threads=self._threads,
        )

    def _kv_bytes(self) -> int:
        if self._config.kv_cache_gb is not None:
            return int(self._config.kv_cache_gb * (1 << 30))
        if self._device.type == "cpu":
            return 2 << 30
        _, total = torch.cuda.mem_get_info(self._device)
        free = int(total * self._share) - torch.cuda.memory_allocated(self._device)
        return max(1 << 30, free // 2)
