"""Without `make compat`, which names the interpreters, every test of this folder skips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from compat.stock_versions import PYTHONS, StockOpenEnv
from fixtures.finqa_server import RunningServer, finqa_server


@pytest.fixture(scope="session", params=list(PYTHONS))
def stock(request: pytest.FixtureRequest) -> StockOpenEnv:
    python = PYTHONS[request.param]
    if not python:
        pytest.skip(f"OpenEnv {request.param} is not there: run `make compat`")
    return StockOpenEnv(request.param, Path(python).absolute())


@pytest.fixture(scope="session")
def our_server(stock: StockOpenEnv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("compat")) as running:
        yield running
