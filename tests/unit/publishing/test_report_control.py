"""A control is the same training on shuffled rewards; everything else is refused with a command that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.report_runs import attempt, evaluated, write_run

from finqa_cli.errors import ConfigError, FinqaError, UsageError
from finqa_cli.publishing.report.report_control import check_control, control_document
from finqa_cli.publishing.report.report_records import read_records


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return evaluated(tmp_path / "run", steps=4)


def checked(run: Path, control: Path) -> None:
    check_control(read_records(run), read_records(control))


def test_a_shorter_control_has_curves_and_evaluations(tmp_path: Path, run: Path) -> None:
    control = evaluated(tmp_path / "control", steps=2, shuffled=True)
    checked(run, control)
    found = control_document(read_records(control))
    assert found["label"] == "control" and found["progress"]["iterations"] == 2
    (accuracy,) = [curve for curve in found["curves"] if curve["key"] == "accuracy"]
    assert [point[0] for series in accuracy["series"] for point in series["points"]] == [1, 2, 0, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"pool": {"sandboxes": 7}, "run": {"dir": "elsewhere"}, "trackers": ["trackio"]},
        {"train": {"iterations": 9, "seed": 0, "shuffle_rewards": True, "eval_every": 3, "keep_checkpoints": 1}},
        {"engine": {"name": "", "options": {"threads": 2}}},
        {"model": {"engine_devices": [1]}},
    ],
)
def test_what_changes_no_iteration_may_differ(tmp_path: Path, settings: dict[str, Any]) -> None:
    own = {"engine": {"name": "", "options": {"threads": 1}}}
    run = evaluated(tmp_path / "run", settings=own)
    checked(run, evaluated(tmp_path / "control", shuffled=True, settings={**own, **settings}))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"train": {"iterations": 3, "seed": 1, "shuffle_rewards": True}}, "train.seed is 0 and 1"),
        ({"optimizer": {"name": "rloo", "options": {}}}, "optimizer.name is grpo and rloo"),
        ({"eval": {"limit": 8}}, "eval.limit is not set and 8"),
        ({"data": {"train_split": "dev"}}, "data.train_split is not set and dev"),
        ({"lora": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}}, "and 1 more"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, run: Path, settings: dict[str, Any], reason: str) -> None:
    control = evaluated(tmp_path / "control", shuffled=True, settings=settings)
    with pytest.raises(ConfigError) as caught:
        checked(run, control)
    assert reason in caught.value.message and "--shuffle-rewards" in caught.value.remedy


def test_other_data_is_refused(tmp_path: Path, run: Path) -> None:
    control = evaluated(tmp_path / "control", shuffled=True)
    for path, digest in ((run, "one"), (control, "two")):
        text = (path / "run.json").read_text("utf-8")
        (path / "run.json").write_text(text.replace("{", f'{{"snapshot digest": "{digest}",', 1), "utf-8")
    with pytest.raises(ConfigError, match="snapshot digest is one and two"):
        checked(run, control)


def test_true_rewards_the_run_itself_and_other_commands_are_refused(tmp_path: Path, run: Path) -> None:
    control = evaluated(tmp_path / "control", shuffled=True)
    other = evaluated(tmp_path / "other")
    played = write_run(tmp_path / "played", [("eval", 0, attempt("a_1"))])
    cases: list[tuple[Path, Path, type[FinqaError], str, str]] = [
        (
            run,
            other,
            ConfigError,
            "was trained on the true rewards",
            f"--shuffle-rewards, or finqa report {run} {other}",
        ),
        (control, run, ConfigError, "is itself a control:", f"finqa report {run} --control {control}"),
        (run, run, UsageError, "its own control", f"finqa report {run}"),
        (run, played, UsageError, "a run of finqa eval", f"finqa report {run}"),
        (played, control, UsageError, "a run of finqa eval", f"finqa report {played}"),
    ]
    for first, second, kind, reason, remedy in cases:
        with pytest.raises(kind) as caught:
            checked(first, second)
        assert reason in caught.value.message and remedy in caught.value.remedy
