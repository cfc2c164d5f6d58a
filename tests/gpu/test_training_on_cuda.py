"""Training on one CUDA device, in the environment that needs no server. Run with: pytest -m gpu tests/gpu"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.app import main

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("empty_folder")]


@pytest.mark.parametrize(("dtype", "agreement"), [("float32", 1e-3), ("bfloat16", 0.5)])
def test_engine_and_learner_agree_on_a_gpu(dtype: str, agreement: float) -> None:
    torch = pytest.importorskip("torch", reason="needs finqa[train]")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    chosen = [
        f"--set={part}.options.{key}={value}"
        for part in ("engine", "learner")
        for key, value in (("device", "cuda"), ("dtype", dtype))
    ]
    command = ["train", "--environment=forecast", "--model=embedded-forecast", "--engine=transformers"]
    assert main([*command, "--iterations=2", "--limit=16", "--run-dir=run", *chosen]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "train" and line["updates"]]
    assert updates and all(line["logprob_difference_max"] <= agreement for line in updates)
