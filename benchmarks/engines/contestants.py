"""The engines that are measured, all on the embedded policy in fp32."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.extend import registry
from finqa_cli.wiring.policies import resolve

LORA_RANK = 8


def embedded_model() -> str:
    """Folder of the embedded policy."""
    return resolve("embedded").model


def vllm_python(given: Path | None) -> Path | None:
    """The interpreter that has vLLM: as given, else as `FINQA_VLLM_PYTHON` says; None when neither is there."""
    path = given or Path(os.environ.get("FINQA_VLLM_PYTHON") or "/nonexistent")
    return path if path.is_file() else None


@asynccontextmanager
async def started(name: str, options: Mapping[str, Any] | None = None) -> AsyncIterator[TokenEngine]:
    """The engine of this name on the embedded policy, for as long as the block runs."""
    context = EngineContext(model=embedded_model(), dispatch_wait_ms=20, lora_rank=LORA_RANK, needs_tokens=True)
    engine: TokenEngine = registry().create("engine", name, dict(options or {}), context)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def vllm_options(python: Path) -> dict[str, Any]:
    """Of a server on the CPU."""
    return {"python": str(python), "dtype": "float32", "kv_cache_gb": 2}
