"""The suite of every token engine on the engine that needs no server, alone and as a set of two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.extend import registry
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.types import PolicyVersion
from finqa_testing.contract.engine_suite import *  # noqa: F403  the tests themselves
from finqa_testing.contract.engine_suite import Make
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture
def make() -> Make:
    return lambda folder: _transformers(folder)


@pytest.fixture(params=[1, 2], ids=["alone", "two"])
async def engine(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[TokenEngine]:
    members = [_transformers(model)]
    if request.param > 1:
        members = [_transformers(model, lockstep=False) for _ in range(request.param)]
    for member in members:  # one after the other: transformers does not load two models at once in one process
        await member.start()
    serving = PolicyVersion(number=0, model=str(model))
    made = members[0] if request.param == 1 else EngineSet(members, serving=serving)
    await made.start()
    yield made
    await made.close()


def _transformers(model: Path, **options: bool) -> TokenEngine:
    context = EngineContext(model=str(model), dispatch_wait_ms=50)
    engine: TokenEngine = registry().create("engine", "transformers", options, context)
    return engine
