"""Without `make test-trl`, which names the interpreter, every test of this folder skips."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trl_parity.interpreter import PYTHON

from finqa_testing.tiny_models import make_tiny_qwen3

if TYPE_CHECKING:
    from trl_parity.sides import Policy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a module waits for TRL's imports and all of the module's trainers."""
    for item in items:
        if item.nodeid.startswith("tests/trl_parity/"):
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    if PYTHON is None:
        pytest.skip("TRL is not there: run `make test-trl`")
    from trl_parity.sides import Policy

    folder = tmp_path_factory.mktemp("trl")
    return Policy(folder, make_tiny_qwen3(folder / "model"))
