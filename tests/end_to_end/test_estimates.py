"""The estimate before a training: its parts, the shorter command that it names, and results that it does not change."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from fixtures.finqa_text_rows import prepared, write

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.training import estimate, training_loop
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def data(empty_folder: Path) -> Path:
    folder = empty_folder / "data"
    folder.mkdir()
    rows = [prepared(number, id=f"C{number}/2018/page_1.pdf-1") for number in range(12)]
    write(folder / "train.jsonl", *rows[:8])
    write(folder / "dev.jsonl", *rows[8:])
    return folder


@pytest.fixture
def every_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in ((estimate, ("SHORT_S", "LONG_S")), (training_loop, ("SHORT_S",))):
        for name in names:
            monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(estimate, "WANTED_S", 0.05)


def events(run: str, name: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(Path(run, "events.jsonl")) if line["event"] == name]


def curve(run: str) -> list[dict[str, Any]]:
    timed = ("timing", "seconds")
    return [
        {key: each for key, each in line.items() if key not in timed} for line in read_jsonl(Path(run, "metrics.jsonl"))
    ]


def test_short_runs_have_none(tiny: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "scripted", "--environment=finqa-text", f"--data={data}", "--split=train", "--run-dir=d"]) == 0
    assert main(["sft", "d", f"--model={tiny}", "--epochs=1", "--validation-samples=0", "--run-dir=a"]) == 0
    assert "Estimated" not in capsys.readouterr().err and not events("a", "estimate")


@pytest.mark.thorough
@pytest.mark.usefixtures("every_run_is_long")
def test_sft_names_a_shorter_command_that_runs_and_its_results_are_those_without_an_estimate(
    tiny: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["eval", "scripted", "--environment=finqa-text", f"--data={data}", "--split=train", "--run-dir=d"]) == 0
    words = ["sft", "d", f"--model={tiny}", "--epochs=4", "--validation-samples=2", "--max-gen-tokens=8", "--lr=1e-3"]
    assert main([*words, "--batch-tokens=900", "--run-dir=a"]) == 0
    (found,) = events("a", "estimate")
    assert found["parts"].keys() == {"steps", "validation", "held-out questions"}
    assert found["seconds"] == pytest.approx(sum(found["parts"].values()), abs=0.2)
    said = capsys.readouterr().err
    assert "Estimated time: about " in said and f"Shorter: {found['shorter']}" in said
    shorter = shlex.split(found["shorter"])
    assert shorter[:3] == ["finqa", "sft", "d"] and f"{tiny}" in shorter and "--run-dir" not in shorter
    epochs = float(shorter[shorter.index("--epochs") + 1])
    assert 0 < epochs < 4
    assert main([*shorter[1:], "--epochs", "0.5"] if epochs < 0.2 else shorter[1:]) == 0

    monkeypatch.setattr(estimate, "SHORT_S", 1e9)
    assert main([*words, "--batch-tokens=900", "--run-dir=b"]) == 0
    assert not events("b", "estimate") and curve("a") == curve("b")


@pytest.mark.thorough
@pytest.mark.usefixtures("every_run_is_long")
def test_train_counts_rollouts_updates_and_evaluations(
    tiny: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("length.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
    )
    words = ["train", f"--model={tiny}", "--environment=finqa-text", f"--data={data}", "--group-size=2"]
    words += ["--target-groups-per-iter=2", "--iterations=3", "--max-gen-tokens=8", "--max-staleness=0", "--limit=2"]
    words += ["--reward=function", "--set=reward.options.function=length.py:compute_score"]
    assert main([*words, "--run-dir=a"]) == 0
    (found,) = events("a", "estimate")
    assert found["parts"].keys() == {"rollouts", "updates", "evaluations"}
    assert all(seconds >= 0 for seconds in found["parts"].values())
    shorter = shlex.split(found["shorter"])
    assert shorter[:2] == ["finqa", "train"] and shorter[shorter.index("--iterations") + 1] == "1"
    assert "reward.options.function=length.py:compute_score" in shorter
    assert "Estimated time: about " in capsys.readouterr().err
    assert main([*shorter[1:], "--run-dir=b"]) == 0
