"""Runs are read, compared, exported and resumed from every working directory, and after their folder was moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures import finqa_text_rows
from fixtures.command_calls import document, failure

import finqa_plugins.policies
from finqa_cli.app import main
from finqa_cli.runs.links import LINKS, follow, link_of, located

pytestmark = pytest.mark.thorough

pytest.importorskip("torch", reason="needs finqa[train]")

ROOT = Path(__file__).parents[2]
EMBEDDED = Path(finqa_plugins.policies.__file__).parent
FEW = ["--limit=2", "--set=sandbox.options.processes=1", "-q"]
SMALL = [*FEW, "--sandboxes=4", "--group-size=2", "--target-groups-per-iter=2", "--max-rollout-rounds=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a model named by a relative path, and an evaluation that names the run by one."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "models").mkdir()
    shutil.copytree(EMBEDDED, folder / "models/small", ignore=shutil.ignore_patterns("*.py", "__pycache__", "text"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--model=models/small", *SMALL, "--iterations=1", "--run-dir=outputs/a/train"]) == 0
        assert main(["eval", "outputs/a/train", *FEW, "--run-dir=outputs/a/eval"]) == 0
    return folder


@pytest.fixture
def moved(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, copied elsewhere and without the original; the working directory is another one."""
    folder = tmp_path / "deep" / "er"
    shutil.copytree(place, folder)
    hidden = place.with_name(f"{place.name}.hidden")
    place.rename(hidden)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield folder
    hidden.rename(place)


def compared(capsys: pytest.CaptureFixture[str], root: Path) -> dict[str, Any]:
    """What a comparison says, without where its files lie."""
    runs = [str(root / "outputs/a/train"), str(root / "outputs/a/eval")]
    found = document(["compare", *runs, "--no-plots", f"--out={root / 'compared'}"], capsys)
    shutil.rmtree(root / "compared")
    text = json.dumps(found).replace(str(root), "ROOT")
    return dict(json.loads(text))


@pytest.mark.slow
def test_a_comparison_is_the_same_from_everywhere_and_after_a_move(
    place: Path, moved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = compared(capsys, moved)
    monkeypatch.chdir(moved)
    assert compared(capsys, moved) == there
    assert [method["label"] for method in there["methods"]] == ["grpo (train)", "grpo (eval)"]
    first, second = (run["training_sampled_tokens"] for run in there["runs"])
    assert first == second > 0, "the cost of the training is found"


def test_an_evaluation_whose_policy_is_gone_is_refused_with_a_reason(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = moved / "outputs/a/train"
    shutil.move(run, moved / "outputs/renamed")
    status, told = failure(["compare", str(moved / "outputs/a/eval"), str(moved / "outputs/renamed")], capsys)
    assert status == 65 and "evaluated outputs/a/train, which does not exist at this path, nor relative to" in told
    other = json.loads((moved / "outputs/renamed/run.json").read_text())
    run.mkdir()
    (run / "run.json").write_text(json.dumps(other | {"created": "2020-01-01T00:00:00+00:00"}))
    status, told = failure(["compare", str(moved / "outputs/a/eval"), str(moved / "outputs/renamed")], capsys)
    assert status == 65 and "does not exist at this path," in told, "another run in its place is not taken for it"


def test_a_moved_run_is_evaluated_exported_and_resumed(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = moved / "outputs/a/train"
    played = document(["eval", str(run), *FEW, "--run-dir=again"], capsys)
    before = json.loads((moved / "outputs/a/eval/report.json").read_text())
    assert (played["accuracy"], played["reward_mean"]) == (before["accuracy"], before["reward_mean"])
    assert main(["export", str(run), "--to=merged", "--out=merged"]) == 0
    assert (Path("merged") / "config.json").is_file()
    assert main(["train", f"--resume={run}", "--iterations=2", "-q"]) == 0
    iterations = [json.loads(line)["iteration"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(iterations) == 2
    again = moved.with_name("once-more")
    moved.rename(again)
    assert main(["eval", str(again / "outputs/a/train"), *FEW, "--run-dir=third"]) == 0
    again.rename(moved)


def test_records_without_links_are_followed_from_the_folders_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, target = tmp_path / "outputs/run_001/10_eval", tmp_path / "outputs/run_001/06_grpo"
    for folder in (run, target, tmp_path / "work"):
        folder.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "work")
    assert follow(run, "outputs/run_001/06_grpo") == target
    assert follow(run, "outputs/nothing") is None and follow(run, "") is None
    assert located(run, "outputs/run_001/06_grpo") == str(target)
    assert located(run, "org/model") == "org/model"
    monkeypatch.chdir(tmp_path)
    assert located(run, "outputs/run_001/06_grpo") == "outputs/run_001/06_grpo"


def test_a_link_goes_to_the_place_beside_the_run_before_the_one_of_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a/run", "a/data"):
        Path(folder).mkdir(parents=True)
    link = link_of(Path("a/run"), "a/data")
    assert link_of(Path("a/run"), "org/model") == {} == link_of(Path("a/run"), "")
    Path("a/run/run.json").write_text(json.dumps({LINKS: link}))
    shutil.copytree("a", "b")
    assert follow(Path("b/run"), "a/data") == tmp_path / "b/data"
    shutil.rmtree("b/data")
    assert follow(Path("b/run"), "a/data") == tmp_path / "a/data", "a copy of the run alone"


@pytest.mark.slow
def test_a_pipeline_is_resumed_from_everywhere_and_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "old")
    finqa_text_rows.write(Path("dev.json"), *(finqa_text_rows.original(number) for number in range(1, 9)))
    asked = [
        "--environment=finqa-text",
        "--data=dev.json",
        f"--init={ROOT / 'recipes/mbpp_policy.toml'}",
        "--quick-test",
    ]
    assert main(["pipeline", "--method=grpo", *asked, "--until=01_dataset", "--output=outputs/one"]) == 0
    monkeypatch.chdir(tmp_path / "work")
    assert main(["pipeline", "--resume=../old/outputs/one", "--until=02_rewards"]) == 0
    assert f"use file paths relative to {tmp_path / 'old'}" in capsys.readouterr().err
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "work")
    run = tmp_path / "new/outputs/one"
    told = document(["pipeline", f"--resume={run}", "--until=02_rewards"], capsys)
    assert {step["state"] for step in told["steps"] if step["name"] <= "02_rewards"} == {"done"}
    steps = json.loads((run / "run.json").read_text())["steps"]
    assert steps["01_dataset"]["command"] == steps["01_dataset"]["last_command"], "nothing was done again"
    run.rename(run.with_name("two"))
    monkeypatch.chdir(tmp_path / "work")
    status, said = failure(["pipeline", f"--resume={run.with_name('two')}"], capsys)
    assert status == 78 and "was started as outputs/one, and its steps use file paths relative to it." in said
    assert f"fix: mv {run.with_name('two')} {run}, and resume it there" in said
