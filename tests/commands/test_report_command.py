"""`finqa report`: where the file goes, what it replaces, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.report_runs import attempt, evaluated, training, write_run

from finqa_cli.app import main
from finqa_cli.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("empty_folder")


def evaluation(name: str, reward: float = 1.0) -> Path:
    return write_run(Path(name), [("eval", 0, attempt(f"q{at}_x", reward=reward)) for at in range(3)])


def test_a_report_lies_next_to_its_run_and_is_written_over_itself(capsys: pytest.CaptureFixture[str]) -> None:
    run = training(Path("run"), steps=2)
    target = run / "report.html"
    for _ in range(2):
        found = document(["report", str(run)], capsys)
        assert found["out"] == str(target) and found["bytes"] == target.stat().st_size
        assert found["runs"] == [{"run": str(run), "episodes": 32, "episodes_shown": 32}]
    assert main(["report", str(run), "--out", "new/place.html", "--episodes", "16"]) == 0
    assert "new/place.html (16 episodes, " in capsys.readouterr().out
    assert "16 of 32 episodes are in this file" in Path("new/place.html").read_text("utf-8")


def test_two_runs_have_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(evaluation("one", 0.0)), str(evaluation("two"))]
    found = document(["report", *runs], capsys)
    assert found["out"] == "one/report_with_two.html" and len(found["runs"]) == 2
    text = Path(found["out"]).read_text("utf-8")
    assert '"better":3' in text and not Path("one/report.html").exists() and not list(Path("two").glob("*.html"))


def test_a_training_has_a_report_with_its_control(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(Path("run")), evaluated(Path("shuffled"), shuffled=True)
    assert main(["report", "run", "--control", "shuffled"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Report: run/report.html (36 episodes, ")
    assert printed[1] == "Open run/report.html in a browser, or: finqa view run --control shuffled"
    assert '"label":"shuffled"' in Path("run/report.html").read_text("utf-8")
    assert main(["report", "run"]) == 0, "the control is remembered"
    assert capsys.readouterr().out.endswith("or: finqa view run --control shuffled\n")
    assert '"label":"shuffled"' in Path("run/report.html").read_text("utf-8")


def test_candidates_of_sample_and_metrics_alone_have_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    sampled = write_run(Path("sampled"), [("sample", 0, attempt("q1_x", phase="sample"))], command="sample")
    assert document(["report", str(sampled)], capsys)["runs"][0]["episodes"] == 1
    updates = [{"kind": "sft", "step": step, "loss": 1 / step} for step in (1, 2)]
    tuned = write_run(Path("tuned"), [], command="sft", metrics=updates)
    assert document(["report", str(tuned)], capsys)["runs"][0]["episodes"] == 0
    assert '"key":"loss"' in (tuned / "report.html").read_text("utf-8")


def test_secrets_of_settings_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"engine": {"name": "openai", "options": {"api_key": "sk-not-in-a-report"}}}
    run = write_run(Path("run"), [("eval", 0, attempt("q1_x"))], settings=settings)
    document(["report", str(run)], capsys)
    text = (run / "report.html").read_text("utf-8")
    assert "engine.options.api_key" in text and "sk-not-in-a-report" not in text


def no_records() -> list[str]:
    with RunFolder.create(Path("empty"), command="eval", settings={}, save_token_ids=False) as run:
        run.finish("failed")
    return ["empty"]


def torn_line() -> list[str]:
    run = evaluation("torn")
    with (run / "trajectories.jsonl").open("a") as file:
        file.write('{"id": "eval/0000\n')
    return [str(run)]


def other_file() -> list[str]:
    Path("notes.html").write_text("<html>mine</html>")
    return [str(evaluation("run")), "--out", "notes.html"]


def no_run() -> list[str]:
    Path("data").mkdir()
    return ["data"]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (lambda: [], 2, "Missing argument 'runs'"),
        (lambda: ["nowhere"], 65, "The run folder nowhere does not exist"),
        (no_run, 65, "run.json"),
        (no_records, 65, "no episodes and no metrics"),
        (torn_line, 65, "line 4"),
        (lambda: [str(evaluation("run")), "./run"], 2, "the same folder"),
        (lambda: [str(evaluation(name)) for name in "abc"], 2, "not 3"),
        (lambda: [str(evaluated(Path("run"))), "--control", str(evaluated(Path("true")))], 78, "true rewards"),
        (lambda: [str(evaluated(Path("run"))), "--control", "nowhere"], 65, "The run folder nowhere does not exist"),
        (lambda: [str(evaluation("a")), str(evaluation("b")), "--control", "c"], 2, "belongs to one training"),
        (other_file, 78, "exists and is not a report"),
        (lambda: [str(evaluation("run")), "--out", "run"], 78, "run is a folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_fix(
    arguments: Callable[[], list[str]], status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments()
    before = {path: path.read_bytes() for path in Path().rglob("*.html")}
    found, text = failure(["report", *given], capsys)
    assert found == status and reason in text
    assert {path: path.read_bytes() for path in Path().rglob("*.html")} == before
