"""The suite of every token engine on vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_server.running import Vllm

from finqa_testing.contract.engine_suite import *  # noqa: F403  the tests themselves
from finqa_testing.contract.engine_suite import Make

pytest.importorskip("torch")


@pytest.fixture
def model(server: Vllm) -> Path:
    return server.model


@pytest.fixture
def make(server: Vllm) -> Make:
    return server.engine


@pytest.fixture
def tolerance() -> float:
    """What else is in a batch moves the last bits."""
    return 1e-4
