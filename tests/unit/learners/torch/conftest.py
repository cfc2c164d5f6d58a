from __future__ import annotations

from pathlib import Path

import pytest

from finqa_testing.tiny_models import make_tiny_qwen3


@pytest.fixture(scope="session")
def learner_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of 2 layers."""
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny")
