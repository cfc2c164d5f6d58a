"""`finqa experiment run`: real trainings and evaluations, in this process instead of one for each step."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.file_checks import check_folder, errors
from fixtures.small_experiments import SMALL, InThisProcess

from finqa_cli.app import main
from finqa_cli.commands import experiment as command
from finqa_cli.experiments import experiment_run as workflow
from finqa_cli.experiments.step_runner import Relay

pytest.importorskip("torch", reason="needs finqa[train]")
pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> InThisProcess:
    made = InThisProcess()
    monkeypatch.setattr(workflow, "Relay", lambda: made)
    Path("small.toml").write_text(SMALL)
    return made


@pytest.mark.thorough
def test_an_experiment_is_trained_compared_answered_and_gone_on_with(
    relay: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["experiment", "run", "small.toml"]
    told = document([*run, "--only=cell-two"], capsys)
    assert told["states"] == {"cell-two": "done", "cell-three": "to do"}
    assert [words[0] for words in relay.ran] == ["eval", "train", "eval"]
    (answer, *_) = told["questions"][0]["answers"]
    assert answer["verdict"] == "not known" and answer["reason"] == "not enough runs: cell-three is not done"
    assert json.loads(Path("outputs/small/run.json").read_text())["status"] == "stopped"
    assert document([*run, "--dry-run"], capsys)["cells"]["cell-two"]["estimate"]["source"] == "measured"

    told = document(run, capsys)
    assert [words[0] for words in relay.ran[3:]] == ["train", "eval"] and told["states"]["cell-three"] == "done"
    by_measure = {one["measure"]: one for one in told["questions"][0]["answers"]}
    assert by_measure["accuracy"]["verdict"] == "not shown" and by_measure["accuracy"]["questions"] == 3
    assert by_measure["brier"]["reason"] == "not measured in cell-three and cell-two"
    assert told["comparisons"] == {"": "comparison"}
    folder = Path("outputs/small")
    compared = json.loads((folder / "comparison/comparison.json").read_text())
    assert [method["label"] for method in compared["methods"]] == ["cell-two", "cell-three"]
    figures = told["cells"]["cell-three"]["figures"]
    assert figures["accuracy"]["value"] == compared["methods"][1]["accuracy"]
    report = (folder / "report.md").read_text()
    assert "### Do more rollouts help?" in report and "| train.group_size | 2 | 3 |" in report
    assert "comparison/report.md" in report
    facts = json.loads((folder / "run.json").read_text())
    assert facts["status"] == "completed" and facts["command"] == "experiment" and (folder / "manifest.json").is_file()
    assert not errors("run", facts) and check_folder(folder / "comparison")

    again = document(["experiment", "run", "--resume=outputs/small"], capsys)
    assert len(relay.ran) == 5 and again == told, "what is done is not done again"
    _redone_and_changed(relay, capsys)


@pytest.mark.thorough
def test_a_cell_is_run_once_for_each_seed_and_reported_over_them(
    relay: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    one_seed = SMALL.replace("N = 3", "N = 3\nseeds = [4]")
    two_seeds = one_seed.replace('cell = "cell-{way}"', 'cell = "cell-{way}"\nseeds = [0, 1]')
    run = ["experiment", "run", "small.toml"]
    Path("small.toml").write_text(two_seeds)
    assert main([*run, "--dry-run"]) == 0
    assert "2 cells, 3 runs over their seeds, in outputs/small" in capsys.readouterr().out
    assert list(document([*run, "--dry-run"], capsys)["cells"]) == ["cell-two_seed0", "cell-two_seed1", "cell-three"]
    Path("small.toml").write_text(one_seed)
    told = document([*run, "--only=cell-two"], capsys)
    assert told["states"] == {"cell-two": "done", "cell-three": "to do"}
    Path("small.toml").write_text(two_seeds)
    assert list(document([*run, "--dry-run"], capsys)["cells"]) == ["cell-two", "cell-two_seed1", "cell-three"]
    told = document(run, capsys)
    assert set(told["states"].values()) == {"done"}
    assert [words[0] for words in relay.ran] == ["eval", "train", "eval", "train", "eval", "train", "eval"]
    two = told["methods"]["cell-two"]
    assert (two["seeds"], two["planned"], two["questions"]) == ([0, 1], 2, 3)
    each = [told["cells"][name]["figures"]["accuracy"]["value"] for name in ("cell-two", "cell-two_seed1")]
    assert two["figures"]["accuracy"]["value"] == pytest.approx(sum(each) / 2)
    (answer, *_) = told["questions"][0]["answers"]
    assert (answer["first"], answer["second"], answer["seeds"]) == ("cell-three", "cell-two", [1, 2])
    compared = json.loads(Path("outputs/small/comparison/comparison.json").read_text())
    assert [len(method["runs"]) for method in compared["methods"]] == [2, 1]
    report = Path("outputs/small/report.md").read_text()
    assert "## Cells over their seeds" in report and "| cell-two | 2 of 2 | 0, 1 |" in report
    again = document(["experiment", "run", "--resume=outputs/small"], capsys)
    assert (len(relay.ran), again) == (7, told)
    Path("small.toml").write_text(one_seed)
    status, refused = failure(run, capsys)
    assert status == 78 and "cells.cell-two_seed1" in refused, "a seed that was played is not left out"


def _redone_and_changed(relay: InThisProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumes the finished experiment of the test above."""
    with Path("outputs/small/evals/cell-two/report.json").open("a") as file:
        file.write(" ")
    status, told = failure(["experiment", "run", "small.toml"], capsys)
    assert status == 78 and "report.json has changed" in told
    assert "finqa experiment run --resume outputs/small --redo evals/cell-two" in told
    relay.before = lambda arguments, _: 1  # that it is begun again is enough here
    status, told = failure(["experiment", "run", "--resume=outputs/small", "--redo=evals/cell-two"], capsys)
    assert status == 1 and [words[0] for words in relay.ran[5:]] == ["train"]
    assert Path("outputs/small/set_aside/runs_cell-two_1/metrics.jsonl").is_file()
    status, told = failure(["experiment", "run", "small.toml", "--set=train.learning_rate=0.5"], capsys)
    assert status == 78 and "contains an experiment with another configuration" in told
    assert "learning_rate: 0.0003, now 0.5" in told
    status, told = failure(["experiment", "run", "--resume=outputs/small", "--seeds=1"], capsys)
    assert status == 2 and "does not take --seeds" in told


def test_a_failed_cell_stops_the_others_unless_they_are_to_go_on(
    relay: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.before = lambda arguments, _: 69 if "runs/cell-two" in " ".join(arguments) else 0
    status, told = failure(["experiment", "run", "small.toml", "-q"], capsys)
    assert status == 69 and "Step runs/cell-two failed (exit code 69)" in told
    assert "fix: finqa experiment run --resume outputs/small" in told and len(relay.ran) == 2
    relay.before = lambda arguments, _: 69 if arguments[0] == "train" else 0
    status, told = failure(["experiment", "run", "small.toml", "-q", "--keep-going"], capsys)
    assert status == 69 and "2 cells failed. cell-two: Step" in told and "cell-three: Step" in told
    assert [words[0] for words in relay.ran[2:]] == ["train", "train"]


def test_a_signal_stops_the_experiment_and_it_says_how_to_go_on(
    relay: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(arguments: Sequence[str], running: Relay) -> int:
        running.stopped = signal.SIGINT
        return 130

    relay.before = stop
    status, told = failure(["experiment", "run", "small.toml", "-q", "--keep-going"], capsys)
    assert status == 130 and "Stopped by SIGINT." in told and len(relay.ran) == 1
    assert "Next: finqa experiment run --resume outputs/small" in told
    assert json.loads(Path("outputs/small/run.json").read_text())["status"] == "interrupted"


def test_a_dry_run_of_the_published_experiment_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "run", "financial_qa", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "Experiment financial_qa",
        "8 cells in outputs/financial_qa",
        "2.0 d to 3.0 d",
        "cost, USD",
        "Cost: GPU-hours at 2.5 USD each, as set in the file; other costs are not included.",
        "warning: qwen3_4b_default, qwen3_4b_no_uncertain, qwen3_4b_rollout4,",
        "the numbers of questions in the plan cannot be compared with the data: there is no data at data.",
        "the authors give 2-3 days (4B) and 4-5 days (8B)",
        "environment.options.uncertainty  advantage",
        "improve model calibration? (brier, ece, accuracy, direction_accuracy)",
        "finqa train --config outputs/financial_qa/settings/",
    ):
        assert words in shown, words
    told = document(["experiment", "run", "financial_qa", "--dry-run", "--only=*_8b_*"], capsys)
    assert len(told["cells"]) == 4 and told["hours"][0] == pytest.approx(24 * 16, rel=0.01)
    assert told["currency"] == "USD" and told["warnings"][0].startswith("qwen3_8b_default, ")
    assert not list(Path().iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["financial_qa"], 65, "Cell qwen3_4b_default: there is no data at data."),
        ([], 2, "No experiment is named."),
        (["financial_qa", "--dry-run", "--redo=x"], 2, "--dry-run starts nothing"),
        (["nothing"], 78, "neither a file nor the name of an included experiment"),
        (["financial_qa", "--only=qwen9"], 2, "There is no cell 'qwen9'."),
        (["financial_qa", "--seeds=1,1"], 2, "seeds must be different natural numbers."),
        (["financial_qa", "--seeds=a"], 2, "--seeds must be whole numbers"),
        (["financial_qa", "--dry-run", "--set=run.dir=x"], 2, "run.dir has no effect here."),
        (["financial_qa", "--dry-run", "--set=optimizer.options.klcoef=1"], 78, "Did you mean 'kl_coef'?"),
        (["financial_qa", "--dry-run", "--set=train.group_size=1"], 78, "Cell qwen3_4b_default: train.group_size"),
        (["--resume=nowhere"], 78, "There is no experiment in nowhere."),
    ],
)
def test_mistakes_are_told(arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, said = failure(["experiment", "run", *arguments], capsys)
    assert found == status and told in said
    assert not list(Path().glob("outputs/*")), "nothing is written"


def test_the_command_is_a_group() -> None:
    assert command.app.registered_commands[0].callback is command.run and main(["experiment"]) in (0, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tiny_experiment_that_ships_runs_here_in_processes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(["experiment", "run", "financial_qa_tiny"], capsys)
    assert set(told["states"].values()) == {"done"} and len(told["states"]) == 4
    found = [one for question in told["questions"] for one in question["answers"]]
    assert len(found) == 5 and all(one["difference"] is not None for one in found), "calibration is measured"
    assert Path("outputs/financial_qa_tiny/runs/tiny_default/rewards.png").is_file()
    assert Path("outputs/financial_qa_tiny/comparison/plots/accuracy_by_method.png").is_file()
