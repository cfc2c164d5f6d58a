"""A tiny model, engines on it, and adapters for it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import EngineContext
from finqa_testing.contract.engine_play import make_adapter
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch")

from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def started(tiny_model: Path) -> Callable[..., Any]:
    """`async with started(max_batch=..., context={...}) as engine`."""

    @asynccontextmanager
    async def make(
        *, model: Path = tiny_model, context: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[TransformersEngine]:
        facts = EngineContext(**{"model": str(model), "dispatch_wait_ms": 20} | (context or {}))
        engine = TransformersEngine(TransformersEngineConfig(**options), facts)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    return make


@pytest.fixture(scope="session")
def made_adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the adapters that tests have asked for so far."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture
def adapter(tiny_model: Path, made_adapters: Path, tmp_path: Path) -> Callable[..., Path]:
    """`adapter(seed, **options of LoraConfig)` is a folder of the test's own."""

    def make(seed: int, **options: Any) -> Path:
        made = made_adapters / f"{seed} {sorted(options.items())}"
        if not made.exists():
            make_adapter(tiny_model, made, seed=seed, **options)
        return Path(shutil.copytree(made, tmp_path / f"adapter-{seed}", dirs_exist_ok=True))

    return make
