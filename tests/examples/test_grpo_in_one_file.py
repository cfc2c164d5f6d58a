"""`examples/grpo_in_one_file.py` is the method of `finqa train`: both report the same figures for the same settings."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="needs finqa[train]")

from finqa_cli.extend import hookimpl, registry
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings, load_settings
from finqa_cli.training.rl import rl_run
from finqa_cli.types import UpdateReport

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import grpo_in_one_file as example

pytestmark = pytest.mark.thorough

SMALL = {
    "pool.sandboxes": 1,
    "pool.sessions_per_sandbox": 16,
    "train.iterations": 2,
    "train.group_size": 8,
    "optimizer.options.clip_low": 0.01,  # narrow, so that it acts after one step
    "optimizer.options.clip_high": 0.01,
    "eval.limit": 1,
}


class Steps:
    """Keeps the reports of the learner's steps, by iteration."""

    def __init__(self) -> None:
        self.reports: dict[int, list[UpdateReport]] = defaultdict(list)

    @hookimpl
    def on_update(self, iteration: int, report: UpdateReport) -> None:
        self.reports[iteration].append(report)


async def product(settings: Settings, run: Path) -> list[dict[str, float]]:
    """What `finqa train` records of each iteration, under the names of the example."""
    steps = Steps()
    registry().manager.register(steps)
    try:
        reporter = NullReporter()
        await rl_run.train(settings, run, resume=False, reporter=reporter, stopper=Stopper(reporter))
    finally:
        registry().manager.unregister(steps)
    names = ("iteration", "groups", "informative", "reward_mean", "loss", "grad_norm")
    return [
        {name: record[name] for name in names}
        | {"clip_fraction": steps.reports[record["iteration"]][-1].metrics["clip_fraction"]}
        for record in read_jsonl(run / "metrics.jsonl")
        if record["kind"] == "train"
    ]


async def test_the_example_has_the_figures_of_the_trainer(tmp_path: Path) -> None:
    settings = load_settings(flags={**example.FLAGS, **SMALL}).settings
    expected = await product(settings, tmp_path / "run")
    found = await example.train(settings, tmp_path / "example")
    assert len(found) == len(expected) == settings.train.iterations
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
        assert one["informative"] and 0 < one["clip_fraction"] < 1, "nothing was clipped: the test shows nothing"
        assert abs(one["loss"]) > 1e-5, "in the first step it is 0: advantages of a group add up to 0"
