from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import shared_training
from fixtures.shared_training import KINDS, train
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from finqa_plugins.learners.torch.micro_batches import distribute_jobs
from finqa_plugins.learners.torch.torch_learner import TorchLearner

HANG_GUARD_S = 300
TOLERANCE = {"half": 3e-2, "autocast": 3e-2}
"""Of kinds that compute in bfloat16: after a step, weights that are apart by rounding are rounded apart again."""


@pytest.fixture(scope="module")
def single(learner_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What one process makes of each kind, and its folder."""
    folder = tmp_path_factory.mktemp("single") / "one"
    return folder, {kind: train(TorchLearner, learner_model, folder, kind) for kind in KINDS}


def under_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Two processes of the script under a real torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, shared_training.__file__, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(shared_training.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
    )


@pytest.fixture(scope="module")
def double(learner_model: Path, single: tuple[Path, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """What two processes do, also from the states of one; and their folder."""
    folder = single[0].parent
    ended = under_torchrun(str(learner_model), str(folder))
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads((folder / "results.json").read_text(encoding="utf-8"))


def flat(value: Any) -> list[float]:
    """The numbers of a report or of rows, in order."""
    if isinstance(value, dict):
        return [number for _, part in sorted(value.items()) for number in flat(part)]
    return (
        [number for part in value for number in flat(part)]
        if isinstance(value, (list, tuple, np.ndarray))
        else [float(value)]
    )


def apart(left: Any, right: Any) -> float:
    """How far two trees of numbers are apart, in norms of the right one."""
    ours, theirs = flat(left), flat(right)
    assert len(ours) == len(theirs) > 0
    return math.dist(ours, theirs) / math.hypot(*theirs)


def flat_text(path: Path) -> dict[str, Any]:
    """A JSON object, its lists in order."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: sorted(value) if isinstance(value, list) else value for name, value in found.items()}


def tensors_apart(left: Path, right: Path) -> float:
    """How far the tensors of two files are apart, in norms of the right one; names and shapes must agree."""
    ours, theirs = load_file(left), load_file(right)
    assert {name: part.shape for name, part in ours.items()} == {name: part.shape for name, part in theirs.items()}
    difference = math.hypot(*(float((ours[name] - theirs[name]).double().norm()) for name in theirs))
    return difference / math.hypot(*(float(part.double().norm()) for part in theirs.values()))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_measure_what_one_does(
    single: tuple[Path, dict[str, Any]], double: tuple[Path, dict[str, Any]], kind: str
) -> None:
    ours, theirs = double[1][kind], single[1][kind]
    tolerance = TOLERANCE.get(kind, 1e-5)
    for name, value in theirs["reports"][-1].items():
        for step, report in enumerate(theirs["reports"]):
            wanted = pytest.approx(report[name], rel=tolerance, abs=tolerance / 10)
            assert ours["reports"][step][name] == wanted, (name, step)
        assert math.isfinite(value)
    for name in set(theirs) - {"reports"}:
        assert apart(ours[name], theirs[name]) < tolerance


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_write_what_one_does(
    single: tuple[Path, dict[str, Any]], double: tuple[Path, dict[str, Any]], kind: str
) -> None:
    ours, theirs = double[0] / kind, single[0] / kind
    files = sorted(path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(ours) for path in ours.rglob("*") if path.is_file())
    for name in files:
        if name.suffix == ".safetensors":
            assert tensors_apart(ours / name, theirs / name) < TOLERANCE.get(kind, 1e-5), name
        elif name.name == "adapter_config.json":  # it lists a set
            assert flat_text(ours / name) == flat_text(theirs / name)
        else:
            assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_with_any_number_of_processes(
    learner_model: Path,
    single: tuple[Path, dict[str, Any]],
    double: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    kind: str,
) -> None:
    ours = train(TorchLearner, learner_model, tmp_path, kind, begin=double[0] / kind / "state")
    tolerance = TOLERANCE.get(kind, 1e-5)
    assert apart(ours, double[1][f"{kind} resumed"]) < tolerance
    file = Path(kind) / "state" / "trained.safetensors"
    assert tensors_apart(tmp_path / file, double[0] / "resumed" / file) < tolerance
    assert tensors_apart(tmp_path / file, single[0] / file) > 1e-4


@pytest.mark.thorough
def test_adapters_of_a_base_in_bfloat16_are_float32(double: tuple[Path, dict[str, Any]]) -> None:
    for file in ("state/trained.safetensors", "policy/adapter_model.safetensors"):
        assert {part.dtype for part in load_file(double[0] / "half" / file).values()} == {torch.float32}


@pytest.mark.thorough
def test_models_that_are_computed_in_bfloat16_are_published_in_it_and_saved_in_float32(
    double: tuple[Path, dict[str, Any]],
) -> None:
    for file, dtype in (("state/trained.safetensors", torch.float32), ("policy/model.safetensors", torch.bfloat16)):
        assert {part.dtype for part in load_file(double[0] / "autocast" / file).values()} == {dtype}


@pytest.mark.thorough
def test_one_process_at_a_time_has_the_whole_weights(double: tuple[Path, dict[str, Any]]) -> None:
    notes = (double[0] / "loads").read_text(encoding="utf-8").split("\n")[:-1]
    begun, ended = ([line.split() for line in notes[place::2]] for place in (0, 1))
    assert [word for _, word in begun] == ["loads"] * len(begun) and [word for _, word in ended] == ["cut"] * len(ended)
    assert [process for process, _ in begun] == [process for process, _ in ended]
    assert len({process for process, _ in begun}) == 2


@pytest.mark.thorough
def test_a_process_that_fails_ends_the_step_of_all_and_the_first_says_why(double: tuple[Path, dict[str, Any]]) -> None:
    assert double[1]["failure"].endswith("process 2 of 2 failed: MemoryError: no memory is left")


@pytest.mark.thorough
@pytest.mark.slow
def test_no_process_outlives_the_first(learner_model: Path, tmp_path: Path) -> None:
    ended = under_torchrun(str(learner_model), str(tmp_path), "dies")
    assert "Signal 9" in ended.stderr and ended.returncode == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


def test_a_share_has_as_many_rounds_as_the_others_and_every_job_is_done_once() -> None:
    assert distribute_jobs([5, 9, 1, 7, 3], 2) == [[1, 4, 2], [3, 0, None]]
    assert distribute_jobs([4], 3) == [[0], [None], [None]]
    assert distribute_jobs([], 2) == [[], []]


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 5))
def test_jobs_of_a_round_cost_alike(costs: list[int], processes: int) -> None:
    rounds = list(zip(*distribute_jobs(costs, processes), strict=True))
    assert sorted(job for jobs in rounds for job in jobs if job is not None) == list(range(len(costs)))
    lowest = [min(costs[job] for job in jobs if job is not None) for jobs in rounds]
    highest = [max(costs[job] for job in jobs if job is not None) for jobs in rounds]
    assert all(low >= high for low, high in zip(lowest, highest[1:], strict=False))
