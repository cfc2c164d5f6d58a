"""From what a server wrote before it died to the error that says what mends it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError, ServiceUnavailableError
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.interpreter import remedy
from finqa_plugins.engines.vllm.vllm_memory import Need

USAGE_STATUS = 2
"""argparse's exit status."""

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
"""By the kernel, which ends whoever takes too much memory: nobody else would."""

_NO_VLLM = re.compile(r"No module named '?vllm'?(?![\w.])")
_TAIL_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a server ended before it answered.

    Attributes:
        status: Exit status of the guard; None: it still ran.
        output: The end of what it wrote.
        log_path: All of it.
        python: The interpreter.
    """

    status: int | None
    output: str
    log_path: Path
    python: str


def explain(death: Death, config: VllmEngineConfig, context: EngineContext, need: Need | None) -> FinqaError:
    """The error for the person who started the run."""
    said = last_words(death.output)
    log = f"Its output is in {death.log_path}."
    if _NO_VLLM.search(death.output):
        return MissingDependencyError(
            f"vllm is not installed for {death.python}.",
            remedy=remedy(config, context.home),
        )
    if _MEMORY.search(said) or _KILLED.search(death.output):
        figures = need.describe() if need else "How much it needs is not known: the model is not a folder here."
        return ConfigError(
            f"The vLLM server had too little memory for {context.model}. {figures} vLLM said: {said} {log}",
            remedy=_less_memory(config, context),
        )
    if death.status == USAGE_STATUS:
        return ConfigError(
            f"The vLLM server refused its arguments: {said} {log}",
            remedy="correct engine.options.extra_args, or finqa setup vllm for a tested release",
        )
    return ServiceUnavailableError(
        f"The vLLM server ended at start: {said} {log}",
        remedy=f"read {death.log_path}; engine.options (finqa plugins show vllm) change how it is started",
    )


def last_words(output: str) -> str:
    """The cause in the server's own words: its last error that does not just report another process's, else its end."""
    lines = [stripped for line in output.splitlines() if (stripped := _without_prefix(line)).strip()]
    errors = [index for index, line in enumerate(lines) if _ERROR.match(line)]
    errors = [index for index in errors if not _ECHO.search(lines[index])] or errors
    if not errors:
        return " / ".join(line.strip() for line in lines[-_TAIL_LINES:])[-1000:] or "it wrote nothing."
    words = [lines[errors[-1]]]
    for line in lines[errors[-1] + 1 :][:3]:  # pydantic's and torch's messages go on in indented lines
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
