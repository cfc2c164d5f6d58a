"""Comparing runs that were really played: by the expert, by the embedded policy and by one that was trained."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_cli.errors import DataError
from finqa_cli.evaluation.compare.comparison import compare
from finqa_cli.evaluation.compare.comparison_report import accuracy_lines, markdown, sentence
from finqa_cli.evaluation.compare.comparison_report import document as as_document
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.runs.durable_files import sha256_of
from finqa_cli.statistics import evaluation_metrics

Finqa = Callable[..., Path]
FAST = ("--environment=finqa-text", "--limit=8")


@pytest.fixture(scope="module")
def finqa(tmp_path_factory: pytest.TempPathFactory) -> Finqa:
    home = tmp_path_factory.mktemp("compared")

    def play(name: str, *arguments: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FINQA_HOME", str(home / "home"))
            patch.chdir(home)
            assert main([*arguments, f"--run-dir={home / name}", "--quiet"]) == 0
        return home / name

    return play


@pytest.fixture(scope="module")
def expert(finqa: Finqa) -> Path:
    return finqa("expert", "eval", "scripted", *FAST, "--attempts=2")


@pytest.fixture(scope="module")
def hurried(finqa: Finqa) -> Path:
    """The expert in the environment with tools, which it cannot finish in three calls."""
    return finqa("hurried", "eval", "scripted", "--limit=8", "--max-steps=3")


@pytest.fixture
def weaker(expert: Path, tmp_path: Path) -> Path:
    """The expert's run with every third question wrong, in the words of the environment's verdict."""

    def spoil(row: int, record: dict[str, Any]) -> None:
        if row % 6 < 2:
            record["reward"] = 0.0
            record["components"] |= {"correct": 0.0, "execution": 0.0, "program": 0.0}
            record["explanation"] = "The result 1 is not the expected one."

    return changed(expert, tmp_path / "weaker", spoil)


def changed(run: Path, to: Path, change: Callable[[int, dict[str, Any]], None]) -> Path:
    shutil.copytree(run, to)
    file = to / "trajectories.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for row, record in enumerate(sorted(records, key=lambda record: record["id"])):
        change(row, record)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return to


def edited(run: Path, to: Path, file: str, **values: Any) -> Path:
    shutil.copytree(run, to)
    content = json.loads((to / file).read_text())
    for path, value in values.items():
        *parents, last = path.split("__")
        section = content
        for parent in parents:
            section = section[parent]
        section[last] = value
    (to / file).write_text(json.dumps(content))
    # not the same bytes as the original, which would be a copy
    with (to / "trajectories.jsonl").open("a") as handle:
        handle.write("{torn")
    return to


def test_a_comparison_by_hand_in_every_output(
    expert: Path, weaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs finqa[report]")
    out = tmp_path / "report"
    found = document(["compare", f"expert={expert}", f"weaker={weaker}", "--out", str(out)], capsys)
    assert [method["accuracy"] for method in found["methods"]] == [1.0, pytest.approx(5 / 8)]
    (pair,) = found["comparisons"]
    assert (pair["first"], pair["second"], pair["difference"]) == ("weaker", "expert", pytest.approx(-3 / 8))
    assert (pair["first_better"], pair["second_better"], pair["mcnemar"]) == (0, 3, 0.25)
    assert pair["verdict"] == "not shown" and pair["low"] < -3 / 8 < pair["high"] and len(pair["lost"]) == 3
    assert found["methods"][1]["failure_reasons"] == {"wrong_program": 6}

    summary = list(csv.DictReader((out / "summary.csv").open(encoding="utf-8")))
    metrics = evaluation_metrics(load_run(weaker).outcomes)
    for name in ("accuracy", "exact_match", "program_accuracy", "format_compliance"):
        assert float(summary[1][name]) == pytest.approx(metrics[name]["value"]), name
    questions = list(csv.DictReader((out / "questions.csv").open(encoding="utf-8")))
    assert {row["id"] for row in questions if row["weaker"] != row["expert"]} == set(pair["lost"])
    assert json.loads((out / "comparison.json").read_text()) == {
        key: value for key, value in found.items() if key != "out"
    }
    report = (out / "report.md").read_text()
    assert "-37.5 points" in report and "No difference is shown" in report
    assert all(f"`{name}`" in report for name in pair["lost"]) and "plots/differences.png" in report
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (out / "plots").iterdir())

    manifest = json.loads((out / "manifest.json").read_text())
    assert [entry["files"]["trajectories.jsonl"] for entry in manifest["inputs"]] == [
        sha256_of(run / "trajectories.jsonl") for run in (expert, weaker)
    ]
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} - {"manifest.json"}
    assert set(manifest["outputs"]) == written
    assert all(digest == sha256_of(out / name) for name, digest in manifest["outputs"].items())

    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    status, errors = failure(["compare", str(expert), str(weaker), "--out", str(out)], capsys)
    assert status == 78 and "not an empty folder" in errors
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_a_trained_run_brings_its_cost_and_its_evaluation_the_same_method(finqa: Finqa, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    small = ("--sandboxes=4", "--group-size=2", "--target-groups-per-iter=1", "--max-rollout-rounds=1", "--limit=4")
    trained = finqa("trained", "train", "--model=embedded", "--engine=transformers", *small, "--iterations=1")
    expert = finqa("expert_with_tools", "eval", "scripted", "--limit=4")
    after = edited(expert, tmp_path / "after", "report.json", target=str(trained))
    runs = [load_run(path) for path in (trained, after, expert)]
    assert [run.method for run in runs] == ["grpo", "grpo", "scripted"]
    assert runs[0].cost == runs[1].cost and runs[2].cost is None
    cost = runs[0].cost
    assert cost is not None and cost.iterations == len(cost.curve) == 1 and 0 < cost.hours < 0.1
    records = [json.loads(line) for line in (trained / "trajectories.jsonl").read_text().splitlines()]
    in_training = [turn for record in records if record["phase"] == "train" for turn in record["turns"]]
    assert cost.sampled_tokens == sum(turn["completion_tokens"] for turn in in_training) > 0
    last = [record for record in records if record["phase"] == "eval" and record["iteration"] == 1]
    assert {one.question: one.correct for one in runs[0].outcomes} == {
        record["task"]["id"]: record["components"]["correct"] == 1.0 for record in last
    }
    result = compare([str(expert), str(trained)])
    assert [method.label for method in result.methods] == ["scripted", "grpo"]
    assert f"| grpo | 0 | trained | 1 | {cost.sampled_tokens:,} |" in markdown(result, [])
    assert as_document(result)["runs"][1]["training_hours"] == cost.hours
    # without its evaluation at the end it can be compared with nothing
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    bare = shutil.copytree(trained, tmp_path / "bare")
    (bare / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if '"kind": "train"' in line))
    with pytest.raises(DataError, match="without an evaluation"):
        load_run(bare)


def test_runs_of_one_label_are_seeds_of_one_method(expert: Path, weaker: Path, tmp_path: Path) -> None:
    other = edited(weaker, tmp_path / "other", "settings.json", train__seed=7)
    result = compare([f"a={expert}", f"a={other}", f"b={weaker}"])
    first, second = result.methods
    assert first.of_runs == (1.0, 0.625) and first.accuracy.mean == pytest.approx(0.8125)
    assert first.seeds_deviation == pytest.approx(0.375 / 2**0.5) and second.seeds_deviation is None
    assert result.comparisons[0].paired.difference == pytest.approx(0.625 - 0.8125)
    alike = compare([str(weaker), str(other), f"best={expert}"])
    assert [(method.label, len(method.runs)) for method in alike.methods] == [("scripted", 2), ("best", 1)]
    assert "train.seed" in alike.differing


def test_runs_of_one_method_with_other_settings_stand_apart(expert: Path, weaker: Path, tmp_path: Path) -> None:
    other = edited(weaker, tmp_path / "longer", "settings.json", train__group_size=99)
    assert [method.label for method in compare([str(expert), str(other)]).methods] == [
        "scripted (expert)",
        "scripted (longer)",
    ]
    chosen = compare([f"x={expert}", f"y={weaker}", f"z={other}"], baseline="y")
    assert [(one.first, one.second) for one in chosen.comparisons] == [("x", "y"), ("z", "y")]


def test_a_run_may_be_named_by_one_of_its_files_and_from_inside_another(
    expert: Path, weaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(expert)  # `scripted`, the target of both, is no policy below this run
    result = compare([f"a={expert / 'report.json'}", "b=" + os.path.relpath(weaker)])
    assert [run.method for run in result.runs] == ["scripted", "scripted"]
    assert result.comparisons[0].paired.difference == pytest.approx(-3 / 8)


def test_faults_are_left_out_and_told(expert: Path, weaker: Path, tmp_path: Path) -> None:
    def fail(row: int, record: dict[str, Any]) -> None:
        if row < 2:
            record |= {"reward": None, "components": {}, "status": "sandbox_error", "error": "gone"}

    result = compare([f"a={changed(weaker, tmp_path / 'faulty', fail)}", f"b={expert}"])
    assert result.comparisons[0].paired.questions == 7
    assert any("2 of 16 episodes" in note and "faults" in note for note in result.notes)


BAD: dict[str, tuple[int, str, Callable[[Path, Path], Path]]] = {
    "data": (65, "differ in data", lambda run, to: edited(run, to, "report.json", data__digest="sha256:0")),
    "grader": (65, "differ in grader", lambda run, to: edited(run, to, "settings.json", environment__name="finqa")),
    "unfinished": (65, "status is 'running'", lambda run, to: edited(run, to, "run.json", status="running")),
    "sft": (65, "does not evaluate a policy.", lambda run, to: edited(run, to, "run.json", command="sft")),
    "version": (65, "has file version 2", lambda run, to: edited(run, to, "run.json", schema_version=2)),
    "records of another version": (
        65,
        "has file version 9",
        lambda run, to: changed(run, to, lambda row, record: record.update(schema_version=9)),
    ),
    "split": (65, "differ in split", lambda run, to: changed(run, to, lambda _, one: one["task"].update(split="dev"))),
    "other questions": (
        65,
        "no graded question in common",
        lambda run, to: changed(run, to, lambda _, one: one["task"].update(id="x" + one["task"]["id"])),
    ),
    "another prompt": (
        65,
        "is not the same",
        lambda run, to: changed(run, to, lambda row, one: row in (2, 3) and one["task"].update(prompt="?")),
    ),
    "twice": (65, "occurs twice", lambda run, to: changed(run, to, lambda _, record: record.update(member=0))),
    "fewer": (65, "contains 16 of the 17", lambda run, to: edited(run, to, "report.json", episodes=17)),
    "no verdict": (65, "was graded", lambda run, to: changed(run, to, lambda _, one: one.update(reward=None))),
    "a field": (
        65,
        "not a trajectory record",
        lambda run, to: changed(run, to, lambda row, one: row or one.pop("turns")),
    ),
    "no report": (
        65,
        "not have the format of finqa:",
        lambda run, to: edited(run, to, "report.json", target=None, data=None),
    ),
    "settings": (65, "not have the format of finqa:", lambda run, to: edited(run, to, "settings.json", reward={})),
    "not finite": (
        65,
        "finite number",
        lambda run, to: changed(run, to, lambda _, one: one.update(reward=math.nan)),
    ),
    "a copy": (2, "is a copy of", lambda run, to: shutil.copytree(run, to)),
    "no run": (65, "is not a run folder", lambda run, to: to),
    "the same": (2, "are the same run", lambda run, to: run),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_compared_is_refused(
    case: str, expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, reason, make = BAD[case]
    other, out = make(expert, tmp_path / "other"), tmp_path / "out"
    got, errors = failure(["compare", str(expert), str(other), "--no-plots", "--out", str(out)], capsys)
    assert (got, reason in errors) == (status, True), errors
    assert not out.exists() and [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{0}"], "at least two runs"),
        (["a={0}", "a={1}"], "seeds of one method"),
        (["a={0}", "b={1}", "--baseline=c"], "no method 'c'"),
        (["={0}", "b={1}"], "neither a run folder nor LABEL=FOLDER"),
        (["a={0}", "b={1}", "--level=1.5"], "--level"),
    ],
)
def test_wrong_command_lines(
    arguments: list[str],
    reason: str,
    expert: Path,
    weaker: Path,
    empty_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, errors = failure(["compare", *(word.format(expert, weaker) for word in arguments), "--no-plots"], capsys)
    assert status == 2 and reason in errors and not (empty_folder / "runs").exists()


def test_runs_of_different_environments_are_refused_whatever_their_data(
    expert: Path, hurried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_run(hurried).outcomes[0].reason == "max_turns"
    status, errors = failure(["compare", str(expert), str(hurried), "--no-plots"], capsys)
    assert status == 65 and "differ in data" in errors


def test_without_matplotlib_plots_are_refused_before_anything_is_read(
    expert: Path, weaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    out = ["--out", str(tmp_path / "out")]
    status, errors = failure(["compare", str(expert), str(weaker), *out], capsys)
    assert status == 78 and "finqa[report]" in errors
    assert main(["compare", str(expert), str(weaker), *out, "--no-plots"]) == 0
    assert not (tmp_path / "out" / "plots").exists() and "Report:" in capsys.readouterr().out


def test_a_plan_from_runs(expert: Path, weaker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(["plan", "--from", str(weaker), "--difference", "0.1"], capsys)
    assert found["design"]["questions"] == 8 and found["design"]["attempts"] == 2
    assert found["assumptions"]["accuracy"] == {"value": 0.625, "origin": "from the run"}
    assert found["assumptions"]["repeated"] == {"value": 1.0, "origin": "from the run"}, "both attempts end alike"
    assert found["questions_needed"] > 8 and found["attempts_needed"] is None
    both = document(["plan", "--from", str(weaker), "--from", str(expert)], capsys)
    assert both["variation"]["within"] == 0.0 and both["variation"]["between"] == pytest.approx(15 / 64 * 8 / 7)
    status, errors = failure(["plan", "--from", str(expert)], capsys)
    assert status == 65 and "there is no variance between questions." in errors and "--accuracy" in errors


def test_seeds_of_a_method_tell_how_runs_spread(
    expert: Path, weaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expert and its weaker copy as two seeds of one method, 37.5 points apart, against two further copies."""

    def none(row: int, record: dict[str, Any]) -> None:
        record["explanation"] = f"graded again, row {row}"

    others = [changed(run, tmp_path / f"other_{run.name}", none) for run in (expert, weaker)]
    sides = [f"a={expert}", f"a={weaker}", *(f"b={run}" for run in others)]
    found = document(["compare", *sides, "--no-plots", "--out", str(tmp_path / "methods")], capsys)
    (pair,) = found["comparisons"]
    assert (pair["about"], pair["runs"], pair["difference"], pair["verdict"]) == ("methods", [2, 2], 0.0, "not shown")
    first = found["methods"][0]
    assert (first["questions"], first["seeds_deviation"]) == (8, pytest.approx(3 / 8 / math.sqrt(2)))
    assert first["interval"][0] < 0.5 < first["interval"][1], "the spread of the runs is in the interval"
    assert any("Two runs each of a, b" in note for note in found["notes"])
    assert "2 runs each" in (tmp_path / "methods" / "report.md").read_text()

    assert accuracy_lines(tmp_path / "methods") == [
        f"{method['label']}: accuracy 0.812 [{method['interval'][0]:.3f}, {method['interval'][1]:.3f}] on 8 questions, "
        f"{method['companies']} companies, 2 runs"
        for method in found["methods"]
    ]
    assert accuracy_lines(tmp_path) == []

    (mixed,) = document(["compare", *sides[:3], "--no-plots", "--out", str(tmp_path / "mixed")], capsys)["comparisons"]
    assert (mixed["about"], mixed["runs"]) == ("method and policy", [1, 2])

    planned = document(["plan", "--accuracy=0.8", *(word for side in sides[:2] for word in ("--from", side))], capsys)
    assert planned["assumptions"]["deviation"]["origin"] == "from 2 runs"
    # of s^2 = 9/128 the questions explain 3/8 * 5/8 / 7 / 2: halves of what 8 questions differ by, of one another
    assert 0.1 < planned["assumptions"]["deviation"]["value"] < 3 / 8 / math.sqrt(2)
    status, errors = failure(
        ["plan", *(word for side in ("a", "b", "c") for word in ("--from", f"{side}={expert}"))], capsys
    )
    assert status == 2 and "the same run" in errors


def test_the_words_of_a_verdict_are_about_policies_or_methods(expert: Path, tmp_path: Path) -> None:
    """Of one run a side no method is called better; of several the methods are."""
    result = compare([f"a={expert}", f"b={changed(expert, tmp_path / 'worse', _wrong)}"], level=0.8)
    (one,) = result.comparisons
    assert one.verdict == "shown" and sentence(result, one).count("These two policies differ") == 1
    assert "one run each says nothing about the methods" in sentence(result, one) and "better" not in sentence(
        result, one
    )
    several = [
        changed(expert, tmp_path / f"{name}{seed}", change)
        for name, change in (("a", _same), ("b", _wrong))
        for seed in range(3)
    ]
    result = compare([f"{run.name[0]}={run}" for run in several], level=0.8)
    (one,) = result.comparisons
    assert one.verdict == "shown" and "The difference of the methods is shown" in sentence(result, one)
    result = compare([f"{run.name[0]}={run}" for run in several[:4]], level=0.8)
    (one,) = result.comparisons
    assert "The method a differs from the one policy b" in sentence(result, one)


def test_runs_that_differ_do_not_show_that_their_methods_do(expert: Path, tmp_path: Path) -> None:
    """One run of three is right everywhere, the others nowhere, against three that are right nowhere."""
    runs = [changed(expert, tmp_path / f"run{place}", _wrong if place else _same) for place in range(6)]
    result = compare([f"{'ab'[place // 3]}={run}" for place, run in enumerate(runs)], level=0.8)
    (one,) = result.comparisons
    assert one.verdict == "tests disagree" and one.adjusted_mcnemar < 0.2 < one.adjusted
    assert "a difference of the methods is not shown" in sentence(result, one) and "train more seeds" in sentence(
        result, one
    )


def _same(row: int, record: dict[str, Any]) -> None:
    record["explanation"] = f"graded again as {row} {record['id']} {id(record)}"


def _wrong(row: int, record: dict[str, Any]) -> None:
    _same(row, record)
    record["reward"] = 0.0
    record["components"] |= {"correct": 0.0, "execution": 0.0, "program": 0.0}
