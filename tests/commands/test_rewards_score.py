"""`finqa rewards score`: rows, candidates and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure, write_rows
from fixtures.file_checks import errors

from finqa_cli.app import main
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Choice, Settings, to_public_dict
from finqa_cli.types import Rewards, Status, Task, ToolCall, ToolSpec, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("empty_folder")

CANDIDATES = {
    "id": "q1",
    "prompt": "What share?",
    "target_json": {"answer": "0.5", "program": "divide(1, 2)"},
    "candidates": [
        {"text": '{"answer": "50%", "program": "divide(1, 2)"}', "parsed_json": {}, "parse_ok": True, "reward": 0},
        {"text": "half"},
        {"text": '```json\n{"answer": 0.505}\n```'},
        {"text": '{"answer": 2}'},
    ],
}
FINQA = {
    "id": "ADI/2009/page_49.pdf-1",
    "filename": "ADI/2009/page_49.pdf",
    "pre_text": [],
    "post_text": [],
    "table": [["", "2009", "2008"], ["interest", "3.8", "3.7"]],
    "qa": {"question": "what is it?", "answer": "3.8", "program": "divide(100, 100), divide(3.8, #0)", "exe_ans": 3.8},
}


def lines(path: Path | str) -> list[Any]:
    found = [json.loads(line) for line in Path(path).read_text().splitlines()]
    if Path(path).name == "scores.jsonl":
        assert not [fault for line in found for fault in errors("scored", line)]
    return found


def test_rows_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(
        "rows.jsonl",
        {"id": "a", "solution": {"answer": "5%", "program": "divide(1, 20)"}, "truth": 0.05},
        {"prediction": '{"answer": 103}', "target_answer": "100", "target_program": "add(99, 1)"},
        {"id": "c", "text": "yes", "ground_truth": {"target": "yes"}, "extra_info": {"question_type": "analysis"}},
        {
            "id": "d",
            "text": '{"answer": "3.8", "program": "table_max(b, none)"}',
            "truth": "3.8",
            "table": [["b", 3.8]],
        },
    )
    result = document(["rewards", "score", rows, "weighted"], capsys)
    scores = lines(result["scores"])
    assert [score["id"] for score in scores] == ["a", "2", "c", "d"]
    assert [round(score["reward"], 9) for score in scores] == [1.3, 0.32, -0.2, 1.3]
    assert [score["parse_ok"] for score in scores] == [True, True, False, True]
    assert result["scores"] == "scores.jsonl" and result["rows"] == result["solutions"] == 4
    assert result["parse_rate"] == 0.75 and result["min_reward"] == -0.2 and result["max_reward"] == 1.3
    assert result["mean_reward"] == pytest.approx(0.68) and result["components"]["exact"] == 0.5
    status, said = failure(["rewards", "score", rows, "weighted"], capsys)
    assert status == 74 and "--overwrite" in said
    assert main(["rewards", "score", rows, "graded", "--overwrite"]) == 0
    printed = capsys.readouterr().out
    assert "4 answers scored by graded." in printed and "parse rate" not in printed


def test_candidates_are_scored_by_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows("candidates.jsonl", CANDIDATES, {**CANDIDATES, "id": "q2", "target_json": '{"answer": 2}'})
    result = document(["rewards", "score", rows, "--out", "scored"], capsys)
    first, second = lines("scored/scores.jsonl")
    assert (first["parse_rate"], first["max_reward"], first["min_reward"]) == (0.75, 1.3, -0.2)
    assert [round(one["reward"], 9) for one in first["candidates"]] == [1.3, -0.2, 0.64, 0.0]
    assert first["mean_reward"] == pytest.approx(1.74 / 4) and second["max_reward"] == 1.0
    assert result["rows"] == 2 and result["solutions"] == 8 and not Path("scores.jsonl").exists()


def test_malformed_rows_are_named_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(
        "rows.jsonl",
        {"id": "a", "solution": '{"answer": 1}', "truth": "1"},
        {"id": "b", "solution": "1"},
        {"id": "c", "truth": "1"},
        "nonsense",
        {"id": "d", "solution": "1", "text": "2", "truth": "1"},
        {"id": "e", "solution": "1", "truth": True},
        {"id": "f", "candidates": [{"reward": 1}], "truth": "1"},
        {"id": "g", "solution": "1", "truth": "1", "table": [[None]]},
    )
    status, said = failure(["rewards", "score", rows], capsys)
    assert status == 65 and "rows.jsonl, row 2, field 'id'" in said and "6 more problems" in said
    assert "--skip-bad" in said and not Path("scores.jsonl").exists()
    result = document(["rewards", "score", rows, "--skip-bad"], capsys)
    assert result["rows"] == 1 and [one["row"] for one in result["skipped"]] == [2, 3, 4, 5, 6, 7, 8]
    assert [one["field"] for one in result["skipped"]][1:] == [
        "solution", "", "text", "truth", "candidates[0].text", "table[0]"
    ]  # fmt: skip
    write_rows("empty.jsonl")
    for name, reason in (("empty.jsonl", "no row"), ("absent.jsonl", "missing"), ("rows.xml", "rows.xml")):
        assert main(["rewards", "score", name, "--out", "elsewhere"]) == 65
        assert reason in capsys.readouterr().err


def test_truths_may_lie_in_another_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dev.json").write_text(json.dumps([FINQA]))
    answer = '{"answer": "3.80", "program": "table_max(interest, none)"}'
    rows = write_rows("rows.jsonl", {"id": FINQA["id"], "solution": answer})
    assert document(["rewards", "score", rows, "--truth", "dev.json"], capsys)["mean_reward"] == 1.3
    truths = write_rows("truths.jsonl", {"id": "other", "answer": "3.8"})
    status, said = failure(["rewards", "score", rows, "--truth", truths, "--overwrite"], capsys)
    assert status == 65 and "contain none for 'ADI/2009/page_49.pdf-1'" in said
    twice = write_rows("twice.jsonl", {"id": "x", "answer": "1"}, {"id": "x", "answer": "2"})
    assert main(["rewards", "score", rows, "--truth", twice, "--overwrite"]) == 65
    assert "twice.jsonl, row 2, field 'id': 'x' occurs twice" in capsys.readouterr().err


def played(
    task_id: str, number: int, *turns: Turn, tools: tuple[ToolSpec, ...] = (), fault: bool = False
) -> Trajectory:
    return Trajectory(
        id=f"eval/{task_id}/{number}",
        task=Task(id=task_id, prompt="How much?", split="test", cluster="ACME", kind="lookup"),
        member=number,
        seed=0,
        status=Status.SANDBOX_ERROR if fault else Status.COMPLETED,
        turns=turns,
        tools=tools,
        rewards=None if fault else Rewards(total=0.0),
    )


def submitting(answer: object) -> Turn:
    return Turn(text="", tool_call=ToolCall(name="submit_answer", arguments={"answer": answer}))


TORN = "an incomplete last line is left out"


@pytest.fixture
def run(finqa_home: Path) -> tuple[Path, str]:
    """A run on the embedded data set: a right answer, silence, a wrong number, a fault, and a crash while writing."""
    snapshot, _ = LocalSnapshots(finqa_home).get_or_build("openenv-finqa")
    truth = lines(snapshot.path / "truth.jsonl")[0]
    tools = (ToolSpec(name="submit_answer", description="Submit.", parameters={"type": "object"}),)
    path = Path("run")
    settings = to_public_dict(Settings())
    with RunFolder.create(path, command="eval", settings=settings, save_token_ids=False) as folder:
        folder.pin("snapshot digest", snapshot.digest)
        folder.trajectory(played(truth["id"], 0, submitting("12"), submitting(truth["answer"]), tools=tools))
        folder.trajectory(played(truth["id"], 1, Turn(text=truth["answer"]), tools=tools))
        folder.trajectory(played(truth["id"], 2, submitting(10**9), tools=tools))
        folder.trajectory(played(truth["id"], 3, fault=True))
        folder.finish("completed")
    with (path / "trajectories.jsonl").open("a") as file:
        file.write('{"torn')
    return path, snapshot.digest


def test_a_run_is_scored_again_with_the_truths_of_its_snapshot(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, digest = run
    plain = ["--set", "reward.options.format=plain"]
    result = document(["rewards", "score", "run", "ternary", *plain], capsys, warning=TORN)
    assert result["scores"] == "run/scores.jsonl" and result["rows"] == 3 and result["parse_rate"] is None
    assert [score["reward"] for score in lines(result["scores"])] == [1.0, -1.0, -1.0]
    facts = (path / "run.json").read_text()
    (path / "run.json").write_text(facts.replace(digest, "sha256:0000"))
    status, said = failure(["rewards", "score", "run", "graded", "--overwrite"], capsys)
    assert status == 65 and "--truth FILE" in said and "sha256:0000" in said
    assert main(["rewards", "score", ".", "graded"]) == 65


@pytest.mark.parametrize("name", ["weighted", "ternary", "graded"])
@pytest.mark.parametrize("truths", [[], ["--truth", "truths.jsonl"]])
def test_a_reward_that_wants_json_is_refused_for_plain_answers(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str], name: str, truths: list[str]
) -> None:
    write_rows("truths.jsonl", {"id": "q1", "answer": "5"})
    options = ["--set", "reward.options.format=json"] if name == "graded" else []
    status, said = failure(["rewards", "score", "run", name, *options, *truths], capsys)
    assert status == 78 and "submits plain answers, but the reward requires JSON" in said
    assert "reward.options.format=plain" in said and not (run[0] / "scores.jsonl").exists()


def test_texts_of_a_run_are_scored_with_truths_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    settings = to_public_dict(Settings(environment=Choice(name="finqa-text")))
    with RunFolder.create(Path("run"), command="eval", settings=settings, save_token_ids=False) as folder:
        folder.trajectory(played("q1", 0, Turn(text='{"answer": 5}')))
        folder.trajectory(played("q2", 0, Turn(text='{"answer": 5}')))
        folder.finish("completed")
    truths = write_rows("truths.jsonl", {"id": "q1", "answer": "5"})
    arguments = ["rewards", "score", "run", "--truth", truths]
    status, said = failure(arguments, capsys)
    assert status == 65 and "run/trajectories.jsonl, row 2, field 'task.id'" in said
    assert document([*arguments, "--skip-bad"], capsys)["mean_reward"] == 1.0


def test_a_reward_that_fails_is_no_reward(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def compute_score(**row):\n    print('x')\n    return len(row['solution_str']) / 0\n")
    rows = write_rows("rows.jsonl", {"id": "a", "solution": "1", "truth": "1"})
    arguments = ["rewards", "score", rows, "function", "--set", "reward.options.function=mine.py"]
    status, said = failure(arguments, capsys)
    assert status == 1 and "rows.jsonl, row 1: The reward function mine.py raised ZeroDivisionError" in said
    assert not Path("scores.jsonl").exists()
    Path("mine.py").write_text("def compute_score(**row):\n    return {'score': 0.5, 'length': 1}\n")
    assert document(arguments, capsys)["components"] == {"length": 1.0}
