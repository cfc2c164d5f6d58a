"""`finqa ls`: every kind of run folder, also killed, damaged and foreign ones."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.written_runs import begin, evaluation, killed_run, write_evaluation

from finqa_cli.app import main
from finqa_cli.commands.recorded.list_runs import score_text
from finqa_cli.runs.durable_files import write_json
from finqa_cli.runs.run_folder import process_facts, write_manifest
from finqa_cli.runs.run_summary import Score

pytestmark = pytest.mark.usefixtures("_warm_commands", "empty_folder")


@pytest.fixture(autouse=True)
def _wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """The runs of `finqa ls --json` by the name of their folder."""
    return {Path(each["path"]).name: each for each in document(["ls", *arguments], capsys)["runs"]}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `finqa ls` prints."""
    assert main(["ls", *arguments]) == 0
    return capsys.readouterr().out


def test_a_killed_run_has_crashed_at_its_last_finished_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(Path("runs/killed"), "train", iterations=7)
    assert json.loads(Path("runs/killed/run.json").read_text())["status"] == "running", "its last word is a lie"
    run = listed(capsys)["killed"]
    assert run["status"] == "crashed" and run["state"] == "crashed at iteration 7 of 24"
    assert run["progress"] == {"unit": "iteration", "done": 7, "total": 24, "step": ""}
    score = {"name": "accuracy", "value": 0.25, "low": 0.15, "high": 0.35, "graded": 40, "iteration": 0}
    # an evaluation of an earlier version does not say how many questions there were
    assert run["score"] == {**score, "questions": None, "clusters": 7}
    text = shown(capsys)
    assert "crashed at iteration 7 of 24" in text and "0.250 [0.150, 0.350] n=40" in text


def test_a_pid_that_is_used_again_is_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train", iterations=2):
        assert listed(capsys)["one"]["state"] == "running, iteration 2 of 24"
        facts = json.loads(Path("runs/one/run.json").read_text())
        write_json(Path("runs/one/run.json"), facts | {"pid_started": facts["pid_started"] - 1})
        assert listed(capsys)["one"]["state"] == "crashed at iteration 2 of 24"
        write_json(Path("runs/one/run.json"), facts | {"host": "elsewhere-123456"})
        run = listed(capsys)["one"]
        assert run["status"] == "unknown" and "its process is on elsewhere-123456; last record" in run["reason"]


def test_a_killed_pipeline_is_not_running_either(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/whole/10_eval"), 0.5)
    steps = {
        "10_eval": {"status": "completed", "command": ["finqa", "eval", "scripted"]},
        "11_compare": {"status": "running", "command": ["finqa", "compare", "."]},
    }
    facts = {"schema_version": 1, "command": "pipeline", "created": "2026-11-25T01:00:00+00:00", "steps": steps}
    process = process_facts()
    write_json(Path("runs/whole/run.json"), {**facts, "status": "running", **process})
    assert listed(capsys)["whole"]["state"] == "running, step 11_compare"
    write_evaluation(Path("runs/whole/01_dataset/demonstrations"), 0.9)
    steps["01_dataset/demonstrations"] = {"status": "completed", "command": ["finqa", "eval", "random"]}
    steps["11_compare"] = steps.pop("11_compare")
    write_json(Path("runs/whole/run.json"), {**facts, "status": "running", **process, "pid_started": 1})
    run = listed(capsys)["whole"]
    assert run["state"] == "crashed at step 11_compare" and run["score"]["value"] == 0.5
    assert [Path(each["path"]).name for each in run["nested"]] == ["10_eval", "demonstrations"]
    assert "10_eval" not in shown(capsys).replace("11_compare", "")
    assert "\n  10_eval" in shown(capsys, "--all"), "nested runs are indented"


def test_progress_and_score_of_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/done"), 0.96)
    write_evaluation(Path("runs/half"), 0.0, played=2, planned=224, finish=False)
    runs = listed(capsys)
    assert runs["done"]["state"] == "completed" and runs["done"]["score"]["graded"] == 40
    assert runs["half"]["state"] == "interrupted after 2 of 224 episodes" and runs["half"]["score"] is None


def test_a_training_without_an_evaluation_has_its_last_reward(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train", iterations=3) as folder:
        folder.finish("completed")
    lines = Path("runs/one/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("runs/one/metrics.jsonl").write_text("".join(lines[1:]) + '{"kind": "eval", "iteration": 3, "accu')
    assert listed(capsys)["one"]["score"]["name"] == "reward", "a torn line is none"
    assert "reward 0.030 n=8" in shown(capsys)


def test_folders_with_a_manifest_only_are_finished_steps(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/pairs").mkdir(parents=True)
    write_manifest(Path("runs/pairs"), "prefs", parameters={}, inputs={})
    assert listed(capsys)["pairs"]["command"] == "prefs" and listed(capsys)["pairs"]["state"] == "completed"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"command": 3, "status": "running"}', '{"command": "eval"}', "\x00\xff", '"\\ud800"'],
)
def test_a_damaged_run_is_named_and_hides_no_other(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/sound"), 0.5)
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_bytes(content.encode("latin-1"))
    Path("runs/notes").mkdir()
    assert main(["data", "check", "embedded", "--out", "runs/check_one", "--json"]) == 0
    capsys.readouterr()
    runs = listed(capsys)
    assert runs["broken"]["status"] == "damaged" and "runs/broken/run.json" in runs["broken"]["reason"]
    assert runs["sound"]["status"] == "completed"
    text = shown(capsys)
    assert "broken: runs/broken/run.json" in text and "1 folder without a run.json: notes" in text
    assert "1 report of finqa data check: check_one" in text


def test_damaged_facts_cost_their_column_only(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/one"), 0.5)
    facts = json.loads(Path("runs/one/run.json").read_text())
    write_json(Path("runs/one/run.json"), facts | {"created": 7, "resumed": "x", "steps": 3, "episodes": "many"})
    Path("runs/one/report.json").write_text('{"accuracy": "high", "episodes": []}')
    Path("runs/one/settings.json").write_text('{"train": 3}')
    run = listed(capsys)["one"]
    assert run["status"] == "completed" and run["score"] is None and run["created"] is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_screen_and_lose_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_run(Path("runs/20261125_013806"), "train", iterations=7)
    write_evaluation(Path("runs/eval_20261125_013806_of_the_seventh_checkpoint"), 0.5)
    monkeypatch.setenv("COLUMNS", str(width))
    text = shown(capsys)
    assert max(map(len, text.splitlines())) <= width
    for part in ("20261125_013806", "crashed at iteration 7 of 24", "0.250 [0.150, 0.350] n=40", "completed", "kB"):
        assert part in text
    assert "eval_20261125_013806_of_the_seventh_checkpoint" in text


def test_names_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/\x1b[31mred"), 0.5)
    Path("runs/\x9b2Jclear").mkdir()
    text = shown(capsys)
    assert "\\x1b[31mred" in text and "\\x9b2Jclear" in text and "\x1b" not in text and "\x9b" not in text


def test_newest_first_and_one_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for name, created in (("a", "2026-11-25T01:00:00+00:00"), ("b", "2026-11-25T03:00:00+00:00")):
        write_evaluation(Path("runs", name), 0.5)
        facts = json.loads(Path("runs", name, "run.json").read_text())
        write_json(Path("runs", name, "run.json"), facts | {"created": created})
    assert list(listed(capsys)) == ["b", "a"] and list(listed(capsys, "runs/a")) == ["a"]


def test_time_between_sessions_of_a_resumed_run_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train") as folder:
        folder.finish("completed")
    facts = json.loads(Path("runs/one/run.json").read_text())
    write_json(Path("runs/one/run.json"), facts | {"resumed": [{"iteration": 1}], "seconds": None})
    times = [("run_start", 100), ("pool", 130), ("run_start", 9000), ("weights", 9005), ("run_end", 9012)]
    lines = "".join(json.dumps({"event": name, "time": at}) + "\n" for name, at in times)
    Path("runs/one/events.jsonl").write_text(lines)
    assert listed(capsys)["one"]["seconds"] == 42


def test_nothing_to_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == f"There are no runs in ./runs of {Path.cwd()}.\n"
    status, told = failure(["ls", "elsewhere"], capsys)
    assert status == 65 and "There is no folder elsewhere" in told


def test_two_hundred_runs_are_listed_within_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/000"), 0.5)
    run = {path.name: path.read_bytes() for path in Path("runs/000").iterdir()}
    long = b"".join(json.dumps({"kind": "train", "iteration": n, "x": "y" * 900}).encode() + b"\n" for n in range(500))
    last = json.dumps({"kind": "eval", "iteration": 499, **evaluation(0.5)}).encode() + b"\n"
    run |= {"metrics.jsonl": long + last, "trajectories.jsonl": b"x" * 100_000}
    run["run.json"] = run["run.json"].replace(b'"eval"', b'"train"')
    for number in range(1, 200):
        folder = Path(f"runs/{number:03}")
        folder.mkdir()
        for name, content in run.items():
            (folder / name).write_bytes(content)
    begun = time.process_time()
    runs = listed(capsys)
    assert time.process_time() - begun < 1.0
    assert len(runs) == 200 and runs["150"]["score"]["value"] == 0.5


def test_questions_stand_beside_a_score_where_they_are_fewer_than_episodes() -> None:
    score = Score(name="accuracy", value=0.5, low=0.4, high=0.6, graded=40, questions=40)
    assert score_text(score) == "0.500 [0.400, 0.600] n=40"
    assert score_text(replace(score, graded=80)) == "0.500 [0.400, 0.600] n=80 questions=40"
    assert score_text(replace(score, value=0.0, graded=0, questions=0)) == "- (all faulted)"
