from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.finqa_server import RunningServer, finqa_server
from fixtures.warm_servers import cold_servers


@pytest.fixture(autouse=True, scope="package")
def _own_interpreters() -> Iterator[None]:
    """These tests are about the server, so that it starts as the product starts it."""
    with cold_servers():
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of this folder: it takes seconds to start and its sessions are independent."""
    with finqa_server(tmp_path_factory.mktemp("finqa_server")) as running:
        yield running
