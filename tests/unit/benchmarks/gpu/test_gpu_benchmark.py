"""The benchmark of a GPU runs on a CPU with the smallest shapes, and notices what it looks for."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.figures import Figure, as_table, at_most
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import kernel as kernel_part
from benchmarks.gpu import mismatch as mismatch_part
from benchmarks.gpu import parts
from benchmarks.gpu.learning_speed import learning_speed
from benchmarks.gpu.models import random_model
from benchmarks.gpu.oom import oom
from benchmarks.gpu.plan import plan
from benchmarks.gpu.scales import SCALES, SMALLEST, TINY
from benchmarks.gpu.training import training
from benchmarks.gpu.updates import batch_of, gradient_of, make_learner, relative, several_episodes
from benchmarks.learner.models import LOSS
from finqa_plugins.learners.torch import packed_rows

pytestmark = pytest.mark.thorough


def failed(figures: list[Figure]) -> list[str]:
    return [f"{figure.name}: {figure.value} {figure.limit} {figure.detail}" for figure in figures if not figure.passed]


def test_attention_of_packed_rows_is_that_of_each_segment_and_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = replace(TINY, kernel_tokens=32)
    figures = kernel_part.kernel(scale, tmp_path)
    assert not failed(figures)
    assert sum(bool(figure.limit) for figure in figures) == 12
    right: Any = packed_rows._by_groups

    def without_prefixes(query: Any, key: Any, value: Any, layer: Any, segments: Any) -> Any:
        alone = replace(segments, paths=tuple((place,) for place in range(len(segments.sizes))))
        return right(query, key, value, layer, alone)

    monkeypatch.setattr(packed_rows, "_by_groups", without_prefixes)
    assert len(failed(kernel_part.kernel(scale, tmp_path))) == 12


def test_updates_are_measured_and_their_memory_is_predicted(tmp_path: Path) -> None:
    figures = [*learning_speed(TINY, tmp_path), *plan(TINY, tmp_path)]
    assert not failed(figures)
    values = {figure.name: figure.value for figure in figures}
    assert values["tiny: rows without padding"] == 1
    assert values["tiny: tokens a second, one sequence of 512 tokens"] > 0
    assert values["tiny, all weights, 256 tokens: predicted GiB"] > values["tiny, LoRA r16, 256 tokens: predicted GiB"]
    assert not list(tmp_path.iterdir())  # models are gone


def test_gradients_do_not_depend_on_the_budget_and_another_is_found(tmp_path: Path) -> None:
    with random_model(SMALLEST, tmp_path) as folder:
        policy = make_learner(folder, rate=1e-2)
        samples = several_episodes(SMALLEST, TINY.tokens, TINY.episode)
        policy.update(batch_of(samples, 128, policy), LOSS)
        policy.save(tmp_path / "state")
        found = []
        for budget, count in ((512, 8), (128, 8), (512, 4)):
            policy.load(tmp_path / "state")
            batch = batch_of(samples[:count], budget, policy)
            found.append(gradient_of(lambda batch=batch: policy.update(batch, LOSS)))
    assert relative(found[0], found[1]) <= 1e-5 < relative(found[0], found[2])
    with pytest.raises(RuntimeError, match="0 steps"):
        gradient_of(lambda: None)


def test_an_update_that_runs_out_of_memory_completes(tmp_path: Path) -> None:
    assert not failed(oom(TINY, tmp_path))


@pytest.mark.slow
def test_one_part_as_the_command_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    out = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--only", "mismatch", "--shapes", "tiny", "--out", str(out)])
    assert command.main() == 0
    document = json.loads(out.read_text())
    assert document == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["device"], document["torch"], document["shapes"]) == ("cpu", torch.__version__, "tiny")
    values = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert 0 <= values["tiny, head in model: p50 (nats)"] <= values["tiny, head in model: largest (nats)"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["engine", "profile"])
def test_other_parts_as_the_command_runs_them(part: str) -> None:
    figures, facts = command.measure([part], "tiny", None)
    assert facts["device"] == "cpu"
    assert not failed(figures[part]) and len(figures[part]) > 5


@pytest.mark.slow
def test_the_small_policy_trains_and_resumes_after_a_kill(tmp_path: Path) -> None:
    figures = training(TINY, tmp_path)
    assert not failed(figures)
    assert sum(bool(figure.limit) for figure in figures) == 6


def test_without_cuda_the_command_says_what_to_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert command.main() == 2
    assert "python -m benchmarks.gpu --shapes tiny" in capsys.readouterr().err


def test_a_part_that_fails_or_takes_too_long_is_a_figure_that_fails() -> None:
    (broken,), _ = command.run_part([sys.executable, "-c", "raise SystemExit('no such kernel | here')"])
    assert not broken.passed and "no such kernel / here" in broken.detail
    began = time.monotonic()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    (late,), _ = command.run_part([sys.executable, "-c", code], limit_s=0.5)
    assert not late.passed and "ended after" in late.detail
    assert time.monotonic() - began < 50  # what it started was ended too: it held the pipe open


def test_every_part_and_shape_is_there() -> None:
    assert all(callable(parts.load(name)) for name in parts.PARTS)
    assert set(parts.OPTIONAL) | set(parts.PER_MODEL) <= set(parts.PARTS)
    assert {shape.name for scale in SCALES.values() for shape in scale.models} <= set(SCALES)


def test_figures_that_are_not_finite_fail_and_are_printed() -> None:
    figures = [at_most("a", math.nan, 1), at_most("b", math.inf, 1), at_most("c", 0.5, 1)]
    assert [figure.passed for figure in figures] == [False, False, True]
    assert "| p | a | nan |" in as_table({"p": figures})


def test_differences_are_counted_by_size() -> None:
    found = torch.tensor([0.0, 0.0005, 0.02, 0.05, 2.0], dtype=torch.float64)
    assert mismatch_part.histogram(found) == "2 below 0.001, 1 below 0.03, 1 below 0.1, 1 below inf"
