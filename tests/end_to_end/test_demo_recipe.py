"""`make demo`: a training, its control and one report; flags go to both, and what fails first ends all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
ENVIRONMENT = {**PLAIN, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "recipes" / "demo.sh"), *flags]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_make_passes_flags_on() -> None:
    command = ["make", "--dry-run", "--directory", str(ROOT), "demo", "ARGS=--iterations 2 --seed 1"]
    printed = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert "bash recipes/demo.sh --iterations 2 --seed 1\n" in printed


def test_make_passes_folder_and_flags_on_to_the_language_model() -> None:
    command = ["make", "--dry-run", "--directory", str(ROOT), "demo-llm", "ARGS=runs/other --seed 1"]
    printed = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert "bash recipes/demo_llm.sh runs/other --seed 1\n" in printed


def test_a_training_that_fails_ends_the_demo(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = demo("--run-dir", str(run), "--set", "train.group_size=0")
    assert done.returncode == 78 and "train.group_size" in done.stderr and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_help_is_shown_once() -> None:
    done = demo("--help")
    assert done.returncode == 0 and done.stdout.count("Usage: finqa train") == 1 and "control" not in done.stderr


@pytest.mark.slow
def test_two_iterations_end_with_a_report_on_both(tmp_path: Path) -> None:
    run, control = tmp_path / "a run", tmp_path / "a run_control"
    few = ("--iterations", "2", "--seed", "1", "--set", "eval.limit=16", "--sandboxes", "24", "--group-size", "4")
    done = demo("--run-dir", str(run), *few)
    assert done.returncode == 0, done.stderr
    settings = [json.loads((folder / "settings.json").read_text("utf-8")) for folder in (run, control)]
    assert [each["train"]["iterations"] for each in settings] == [2, 1]
    assert [each["train"]["shuffle_rewards"] for each in settings] == [False, True]
    assert [each["train"]["seed"] for each in settings] == [1, 1]
    lines = done.stdout.splitlines()
    assert lines[-1] == f"Open {run}/report.html in a browser, or: finqa view '{run}' --control '{control}'"
    assert sum(line.startswith("accuracy, greedy") for line in lines) == 2
    assert '"label":"a run_control"' in (run / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_the_recipe_of_the_language_model_with_the_embedded_policy_can_be_called_twice(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "recipes" / "demo_llm.sh"), str(tmp_path / "work"), "--iterations", "2"]
    few = ("--group-size", "4", "--set", "eval.limit=8", "--sandboxes", "16")
    environment = {**ENVIRONMENT, "DEMO_LLM_MODEL": "embedded"}
    done = [
        subprocess.run([*command, *few], env=environment, capture_output=True, text=True, check=False) for _ in range(2)
    ]
    assert [each.returncode for each in done] == [0, 0], done[-1].stderr
    assert (tmp_path / "work" / "train" / "report.html").is_file()
    assert "3. Imitation" in done[1].stdout and "already finished" in done[1].stdout
