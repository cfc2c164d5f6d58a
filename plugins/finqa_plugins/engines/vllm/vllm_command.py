"""Command line and environment of a server. Starts nothing; only looks for the interpreter and the model folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.local_models import local_model
from finqa_cli.masking import without_secrets
from finqa_cli.placement.memory_formulas import ENGINE_ROWS, ENGINE_TOKENS
from finqa_plugins.engines.vllm.config import LORA_RANKS, VllmEngineConfig
from finqa_plugins.engines.vllm.machine import interpreter

HOST = "127.0.0.1"
SERVED_NAME = "policy"
"""Name of the base model on a server that the engine starts."""

IN_SERVER = Path(__file__).with_name("in_server")
"""Folder of the code that the server imports."""

KV_CACHE_GB_WITHOUT_GPU = 1.0
"""GB; without a GPU, gpu_memory_utilization would be a share of main memory, which other programs use too."""

_PASSED = re.compile(
    r"(PATH|LD_LIBRARY_PATH|LD_PRELOAD|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|XDG_\w+|SSL_CERT_\w+"
    r"|(OMP|MKL|KMP|GOMP|OPENBLAS|CUDA|CUBLAS|NVIDIA|NCCL|GLOO|UCX|HIP|ROCR|ROCM|HSA|PYTORCH|TORCH|TORCHINDUCTOR|TRITON"
    r"|VLLM|FLASHINFER|HF|TRANSFORMERS|TOKENIZERS|RAY|CC|CXX)(_\w+)?)"
)

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start one server. The environment contains the key that protects its API from other users."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    port: int
    host: str = HOST

    @property
    def base_url(self) -> str:
        """Address of the API."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/v1"


def launch(
    config: VllmEngineConfig,
    context: EngineContext,
    *,
    port: int,
    key: str,
    gpu: bool,
    environ: Mapping[str, str],
) -> Launch:
    """How to start the server of this replica.

    Raises:
        ConfigError: The adapter rank is above what vLLM serves, or there are no devices for this replica.
    """
    return Launch(
        arguments=(*_program(config, context), *_arguments(config, context, port, gpu), *config.extra_args),
        environment=_environment(config, context, key, gpu, environ),
        port=port,
        host=listens_at(config, context),
    )


def listens_at(config: VllmEngineConfig, context: EngineContext) -> str:
    """The address of the server: loopback if it opens vLLM's development routes, which can call any method."""
    return HOST if changes_weights(config, context) else context.host


def served_dtype(config: VllmEngineConfig, *, gpu: bool) -> str:
    """Data type in which the server computes."""
    return config.dtype if config.dtype != "auto" else "bfloat16" if gpu else "float32"


def server_rank(rank: int) -> int:
    """The smallest --max-lora-rank that serves adapters of this rank.

    Raises:
        ConfigError: vLLM does not serve so large a rank.
    """
    fitting = [allowed for allowed in LORA_RANKS if allowed >= rank]
    if not fitting:
        raise ConfigError(
            f"vLLM serves LoRA adapters up to rank {LORA_RANKS[-1]}, not {rank}.",
            remedy=f"--lora-rank {LORA_RANKS[-1]}, or --lora-rank 0 to train all weights",
        )
    return fitting[0]


def changes_weights(config: VllmEngineConfig, context: EngineContext) -> bool:
    """Whether the run needs routes that vLLM opens in its development mode only: sleep, and weights in place."""
    return context.sleep or context.lora_rank == 0


def _program(config: VllmEngineConfig, context: EngineContext) -> tuple[str, ...]:
    # Not `vllm serve`: that looks for the distribution `vllm`, but builds for the CPU have another name.
    return (str(interpreter(config, context.home)), "-m", "vllm.entrypoints.openai.api_server")


def _arguments(config: VllmEngineConfig, context: EngineContext, port: int, gpu: bool) -> list[str]:
    # What a run's results depend on is passed even if it is vLLM's default today.
    arguments = [
        *("--host", listens_at(config, context), "--port", str(port)),
        *("--model", model_path(context.model), "--served-model-name", SERVED_NAME),
        *("--dtype", served_dtype(config, gpu=gpu), "--seed", str(context.process_seed % 2**31)),
        *("--tensor-parallel-size", str(context.tensor_parallel_size)),
        *("--generation-config", "vllm"),  # a model's own sampling defaults would change what is sampled from
        *("--logprobs-mode", "processed_logprobs"),  # of the distribution that was sampled from
        "--enable-prefix-caching" if config.prefix_caching else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",  # how much of a prompt came from the prefix cache
        "--disable-uvicorn-access-log",
        *("--middleware", "finqa_vllm_key.RequireKey"),  # other users of this machine reach loopback too
    ]
    if config.head_dtype != "model" and served_dtype(config, gpu=gpu) != config.head_dtype:
        # As the learner's. Rounded to bfloat16, a logit near 20 is off by up to 0.06, which would be most of the
        # difference between the two. On CUDA it costs nothing: the operands stay in 16 bits.
        arguments.append(f"--hf-overrides.head_dtype={config.head_dtype}")
    if context.max_context:
        arguments += ["--max-model-len", str(context.max_context)]
    if gpu:  # the memory plan counts with them, and vLLM's own depend on the card: 1024 and 16384 on an H100
        arguments += ["--max-num-batched-tokens", str(ENGINE_TOKENS)]
    if (rows := config.max_num_seqs or (ENGINE_ROWS if gpu else None)) is not None:
        arguments += ["--max-num-seqs", str(rows)]
    cache_gb = config.kv_cache_gb or (None if gpu else KV_CACHE_GB_WITHOUT_GPU)
    if cache_gb is not None:
        arguments += ["--kv-cache-memory-bytes", str(int(cache_gb * 2**30))]
    else:
        arguments += ["--gpu-memory-utilization", str(context.gpu_memory_utilization)]
    if context.lora_rank > 0:
        loras = str(config.max_loras or context.versions + 1)
        arguments += ["--enable-lora", "--max-lora-rank", str(server_rank(context.lora_rank)), "--max-loras", loras]
    if config.enforce_eager if config.enforce_eager is not None else not gpu:
        arguments.append("--enforce-eager")
    if not gpu:
        # vLLM 0.32 crashes on a CPU if the prompt of a seeded request is computed in parts: `_bookkeeping_sync` of its
        # model runner needs the offset of the generator, which generators for CPUs do not have
        arguments.append("--no-enable-chunked-prefill")
    if context.sleep:
        arguments.append("--enable-sleep-mode")
    return arguments


def model_path(model: str) -> str:
    """The model's folder, also of a hub id, as an absolute path: the server has another working directory.

    A hub id that is not in the hub's cache is returned as it is.
    """
    found = local_model(model)
    return str(Path(found).absolute()) if Path(found).is_dir() else model


def _environment(
    config: VllmEngineConfig, context: EngineContext, key: str, gpu: bool, environ: Mapping[str, str]
) -> dict[str, str]:
    """Environment with only the variables that a Python program and its libraries need: no key and no other secret."""
    inherited = without_secrets({name: value for name, value in environ.items() if _PASSED.fullmatch(name)})
    if context.sleep:  # vLLM's sleep mode fails under expandable_segments, which suits the learner in this process
        inherited = {name: value for name, value in inherited.items() if name not in _ALLOCATOR}
    environment = {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        **({"HF_HUB_OFFLINE": "1"} if Path(model_path(context.model)).is_dir() else {}),
        **config.env,
        "VLLM_API_KEY": key,
        "VLLM_SERVER_DEV_MODE": str(int(changes_weights(config, context))),
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(IN_SERVER), environment.get("PYTHONPATH", ""))))
    if gpu:
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as the driver and the plan number devices
        environment["CUDA_VISIBLE_DEVICES"] = _devices(context, environ.get("CUDA_VISIBLE_DEVICES"))
    return environment


def _devices(context: EngineContext, visible: str | None) -> str:
    """CUDA_VISIBLE_DEVICES of this replica: its planned devices, counted among those that this process sees."""
    share = context.tensor_parallel_size
    chosen = context.devices or tuple(range(context.replica * share, (context.replica + 1) * share))
    if visible is None:
        return ",".join(map(str, chosen))
    seen = [device.strip() for device in visible.split(",") if device.strip()]
    if max(chosen) >= len(seen):
        raise ConfigError(
            f"{context.replicas} replicas on {share} GPUs each need {context.replicas * share} GPUs, but "
            f"CUDA_VISIBLE_DEVICES contains {visible!r}.",
            remedy="fewer generation.engine_replicas, or a smaller --tensor-parallel-size",
        )
    return ",".join(seen[device] for device in chosen)
