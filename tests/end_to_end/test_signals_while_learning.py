"""Ctrl-C and SIGTERM while a slow learner works: what they print, how soon they act, and the resumed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.finqa_text_rows import prepared, write

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")

LAYERS = 24

SLOW = """
import os, sys, time
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers.modeling_layers import GradientCheckpointingLayer

def sleep(module, arguments):
    if isinstance(module, GradientCheckpointingLayer):
        time.sleep(float(os.environ['LAYER_S']))

register_module_forward_pre_hook(sleep)
from finqa_cli.__main__ import main
sys.exit(main())
"""
"""A `finqa` whose layers sleep, so that a micro-batch takes as long as one of a real model, without its work."""

TRAINING = ("--validation-samples=0", "--validate-every=2", "--batch-tokens=900", "--epochs=0.4", "--lr=3e-3")

SOON_S = 12.0
"""The work ends within 5 s of a signal; a busy machine gets some more. Without a check it takes 20 s."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny"), layers=LAYERS)


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gold")
    rows = [prepared(number, id=f"C{number}/2018/page_1.pdf-1") for number in range(12)]
    write(folder / "train.jsonl", *rows)
    run = folder / "run"
    wanted = ["--environment=finqa-text", f"--data={folder}", "--split=train", f"--run-dir={run}", "--quiet"]
    assert main(["eval", "scripted", *wanted]) == 0
    return run


def stop_at(
    moment: str, number: signal.Signals, *arguments: str, layer_s: float, pause_s: float
) -> tuple[str, int, float]:
    """Signals a slow command once a line of stderr matches; its stderr, its status, and the seconds until its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LAYER_S": str(layer_s)},
    )
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if re.search(moment, line):
                break
        time.sleep(pause_s)
        sent = time.monotonic()
        process.send_signal(number)
        said += process.stderr.readlines()
        return "".join(said), process.wait(timeout=60), time.monotonic() - sent
    finally:
        process.kill()


def curve(run: str) -> list[dict[str, Any]]:
    return [{**line, "timing": None} for line in read_jsonl(Path(run, "metrics.jsonl"))]


@pytest.mark.thorough
def test_validation_before_the_first_step_is_named_and_ends_soon(tiny: Path, gold: Path) -> None:
    words = ("sft", str(gold), f"--model={tiny}", *TRAINING, "--set=sft.validation_share=0.5", "--run-dir=a")
    said, status, seconds = stop_at(
        r"^validation of \d+ demonstrations \.\.\.", signal.SIGTERM, *words, layer_s=0.8, pause_s=0.3
    )
    assert re.search(r"^SIGTERM: validation of \d+ demonstrations ends within 2 s; press again", said, re.MULTILINE)
    assert "episodes" not in said and status == 143, said
    assert seconds < SOON_S, said


@pytest.mark.thorough
def test_an_interrupted_update_leaves_no_half_step(tiny: Path, gold: Path) -> None:
    assert main(["sft", str(gold), f"--model={tiny}", *TRAINING, "--run-dir=whole", "--quiet"]) == 0
    words = ("sft", str(gold), f"--model={tiny}", *TRAINING, "--run-dir=cut")
    said, status, seconds = stop_at(r"^step 2:", signal.SIGINT, *words, layer_s=0.25, pause_s=2.5)
    assert "SIGINT: sft step 3 of" in said and status == 130, said
    assert seconds < SOON_S, said
    assert [line["iteration"] for line in curve("cut") if line["kind"] == "sft"] == [1, 2]
    assert main(["sft", "--resume", "cut", "--quiet"]) == 0
    assert curve("cut") == curve("whole")
