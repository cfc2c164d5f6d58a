"""Explains why a server ended at start, with a remedy, and estimates the memory that it needs on each device."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import EngineContext
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError, ServiceUnavailableError
from finqa_cli.placement.known_models import text_settings
from finqa_cli.placement.memory_formulas import ENGINE_ROWS
from finqa_plugins.engines._http.adapter_files import model_shapes
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.machine import remedy

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes that a server needs on each device, without activations.

    Attributes:
        weights: Weights of the model.
        adapters: All adapters that are loaded at once.
        context: KV cache of one sequence of full length; with less the server does not start.
        length: That length in tokens.
        sequences: Sequences of full length that would be decoded together at most.
    """

    weights: int
    adapters: int
    context: int
    length: int
    sequences: int

    @property
    def least(self) -> int:
        """Bytes that are needed to start."""
        return self.weights + self.adapters + self.context

    def describe(self) -> str:
        """A sentence with the sum and its parts."""
        together = _gib(self.context * self.sequences)
        return (
            f"It needs at least {_gib(self.least)} on each device, besides activations: {_gib(self.weights)} of "
            f"weights, {_gib(self.adapters)} of adapters and {_gib(self.context)} of KV cache for one sequence of "
            f"{self.length} tokens ({together} for {self.sequences} at once; with less, some wait)."
        )


def need(
    model: Path,
    *,
    dtype: str,
    length: int | None,
    sequences: int | None,
    tensor_parallel_size: int,
    lora_rank: int,
    loras: int,
) -> Need | None:
    """The need of one device; None if the folder does not show it (a hub id, an unknown architecture).

    Args:
        model: Folder with config.json and safetensors.
        dtype: Data type of weights, keys and values.
        length: Longest sequence in tokens; None: the model's own limit.
        sequences: Sequences decoded together; None: the default.
        tensor_parallel_size: Devices that share the model.
        lora_rank: Rank that the server reserves memory for; 0: no adapters.
        loras: Number of adapters loaded at once.
    """
    try:
        facts = text_settings(parse_json((model / "config.json").read_text(encoding="utf-8")))
        heads = int(facts.get("num_key_value_heads") or facts["num_attention_heads"])
        width = int(facts.get("head_dim") or facts["hidden_size"] // facts["num_attention_heads"])
        layers = int(facts["num_hidden_layers"])
        length = length or int(facts["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    shapes = model_shapes(str(model))
    if not shapes:
        return None
    size = DTYPE_BYTES[dtype]
    low_rank = sum(
        lora_rank * sum(shape) for name, shape in shapes.items() if name.endswith("_proj.weight") and len(shape) == 2
    )
    return Need(
        weights=size * sum(math.prod(shape) for shape in shapes.values()) // tensor_parallel_size,
        adapters=size * low_rank * loras // tensor_parallel_size,
        # each device has at least one key head
        context=2 * layers * -(-heads // tensor_parallel_size) * width * size * length,
        length=length,
        sequences=sequences or ENGINE_ROWS,
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


USAGE_STATUS = 2
"""argparse's exit status for wrong arguments."""

_PREFIX = re.compile(r"^\((?:\w+[ -]?)+\w* pid=\d+\)\s?|^(?:ERROR|WARNING|INFO) \d\d-\d\d [\d:]+ \[[^\]]*\]\s?")
_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|error): ?\S")
_ECHO = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Worker failed with error|Engine core process"
    r"|EngineCore encountered|resource_tracker"
)
_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory|No available memory for the cache blocks"
    r"|larger than the available KV cache|less than (desired|requested)[^.]{0,20} memory|Free memory on device",
    re.IGNORECASE,
)
_KILLED = re.compile(r"^\[finqa\] the server ended with status -9$|Failed core proc\(s\): \{[^}]*: -9\b", re.MULTILINE)
"""Killed by SIGKILL: the kernel ends processes that use too much memory, and nothing else sends this signal."""

_NO_VLLM = re.compile(r"No module named '?vllm'?(?![\w.])")
_NARROW_HEAD = "only supported for an unquantized lm_head"
_TAIL_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a server ended before it answered.

    Attributes:
        status: Exit status of the guard; None if it was still running.
        output: The end of the server's output.
        log_path: File with all output.
        python: Interpreter of the server.
    """

    status: int | None
    output: str
    log_path: Path
    python: str


def explain(death: Death, config: VllmEngineConfig, context: EngineContext, need: Need | None) -> FinqaError:
    """The error that reports to the user why the server ended, and what to do."""
    said = last_words(death.output)
    log = f"Its output is in {death.log_path}."
    if _NO_VLLM.search(death.output):
        return MissingDependencyError(
            f"vllm is not installed for {death.python}.",
            remedy=remedy(config, context.home),
        )
    if _MEMORY.search(said) or _KILLED.search(death.output):
        figures = (
            need.describe() if need else "Its memory requirement is not known, because the model is not a local folder."
        )
        return ConfigError(
            f"The vLLM server did not have enough memory for {context.model}. {figures} vLLM said: {said} {log}",
            remedy=_less_memory(config, context),
        )
    if death.status == USAGE_STATUS:
        return ConfigError(
            f"The vLLM server rejected its arguments: {said} {log}",
            remedy="correct engine.options.extra_args, or finqa setup vllm, which installs a tested release",
        )
    if _NARROW_HEAD in said:
        return ConfigError(
            f"The output layer of {context.model} is quantized, so vLLM cannot compute its logits in float32. {log}",
            remedy="--set engine.options.head_dtype=model",
        )
    return ServiceUnavailableError(
        f"The vLLM server ended at start: {said} {log}",
        remedy=f"read {death.log_path}; engine.options (finqa plugins show vllm) change how it is started",
    )


def last_words(output: str) -> str:
    """The cause in the server's output: its last error that does not merely repeat another one, else the last lines."""
    lines = [stripped for line in output.splitlines() if (stripped := _without_prefix(line)).strip()]
    errors = [index for index, line in enumerate(lines) if _ERROR.match(line)]
    errors = [index for index in errors if not _ECHO.search(lines[index])] or errors
    if not errors:
        return " / ".join(line.strip() for line in lines[-_TAIL_LINES:])[-1000:] or "it wrote nothing."
    words = [lines[errors[-1]]]
    for line in lines[errors[-1] + 1 :][:3]:  # pydantic's and torch's messages continue in indented lines
        if not line.startswith(" "):
            break
        words.append(line.strip())
    return " ".join(words)[:1000]


def _without_prefix(line: str) -> str:
    while (shorter := _PREFIX.sub("", line, count=1)) != line:
        line = shorter
    return line


def _less_memory(config: VllmEngineConfig, context: EngineContext) -> str:
    if config.kv_cache_gb is not None:
        more = f"another engine.options.kv_cache_gb (now {config.kv_cache_gb:g})"
    else:
        more = f"another --gpu-memory-utilization (now {context.gpu_memory_utilization:g}: more where the GPU is free)"
    return (
        f"{more}, a higher --tensor-parallel-size (now {context.tensor_parallel_size}), or ask for less: "
        "--set model.max_model_len=..., engine.options.max_num_seqs=..., engine.options.max_loras=..., "
        "a smaller --lora-rank"
    )
