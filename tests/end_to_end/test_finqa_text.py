"""Single-turn FinQA through the whole product: gold replay, policies that write tokens, training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import finqa_text_rows

from finqa_cli.app import main
from finqa_testing.tiny_models import make_tiny_qwen3

FINQA = Path(__file__).parents[3] / "shared" / "data" / "finqa"

pytestmark = pytest.mark.usefixtures("empty_folder")


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--environment=finqa-text", "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments, "--environment=finqa-text"]) == 65
    return capsys.readouterr().err


def check_gold_replay(report: dict[str, Any], episodes: int) -> None:
    assert report["episodes"] == episodes and report["faults"] == 0 and report["accuracy"] == 1.0
    assert report["components"] == dict.fromkeys(("correct", "execution", "program", "answer", "format"), 1.0)


def test_gold_replay_of_the_embedded_tasks_is_all_right(capsys: pytest.CaptureFixture[str]) -> None:
    check_gold_replay(document(capsys, "eval", "scripted"), 48)
    check_gold_replay(document(capsys, "eval", "scripted", "--split=train", "--limit=40"), 40)


@pytest.mark.parametrize(("name", "limit", "episodes"), [("test.json", 0, 1147), ("dev.json", 100, 100)])
def test_gold_replay_of_original_finqa_is_all_right(
    capsys: pytest.CaptureFixture[str], name: str, limit: int, episodes: int
) -> None:
    path = FINQA / name
    if not path.is_file():
        pytest.skip(f"original FinQA ({name}) is not beside this checkout")
    report = document(capsys, "eval", "scripted", f"--data={path}", f"--limit={limit}")
    check_gold_replay(report, episodes)
    saved = json.loads((Path(report["run"]) / "report.json").read_text())
    assert saved["data"]["name"] == name and saved["data"]["evaluation_only"] == (name == "test.json")


def test_a_transcript_shows_the_reply_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--environment=finqa-text", "--engine=scripted", "--seed=1"]) == 0
    shown = capsys.readouterr().out
    assert '1. {"answer": ' in shown and "Reward 1: The program gives the expected result." in shown
    assert "tool call" not in shown


def test_the_test_split_is_not_trained_on(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    row = {"id": "a", "input_text": "how much?", "question": "how much?", "target_answer": "1"}
    Path("test.jsonl").write_text(json.dumps(row))
    assert "evaluation only" in refusal(capsys, "train", "--data=test.jsonl", "--model=embedded")
    told = refusal(capsys, "train", "--data=test.jsonl", "--model=embedded", "--set", "data.train_split=test")
    assert "evaluation only" in told


def test_a_broken_file_is_told_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    finqa_text_rows.write(Path("dev.json"), {"id": "a"}, finqa_text_rows.original())
    told = refusal(capsys, "eval", "scripted", "--data=dev.json")
    assert "dev.json, row 1, field 'qa.question': must be a text" in told and "skip_bad=true" in told
    finqa_text_rows.write(Path("dev.json"), {"id": "a"})  # no row would be left
    assert "skip_bad" not in refusal(capsys, "eval", "scripted", "--data=dev.json")


def test_a_policy_that_was_never_taught_this_is_graded_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    report = document(capsys, "eval", "embedded", "--limit=2", "--max-gen-tokens=8")
    assert report["faults"] == 0 and report["accuracy"] == 0.0 and report["turns_mean"] == 1.0
    long = {"id": "a", "input_text": "word " * 3000, "question": "long?", "target_answer": "1"}
    Path("dev.jsonl").write_text(json.dumps(long))
    report = document(capsys, "eval", "embedded", "--data=dev.jsonl")
    assert report["statuses"]["max_tokens"] == 1 and report["faults"] == 0 and report["components"]["correct"] == 0.0


def test_one_iteration_trains_on_replies_of_a_single_turn(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    model = make_tiny_qwen3(empty_folder / "tiny")
    Path("length.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert extra_info['question_type'] and ground_truth\n"
        "    return {'score': len(solution_str) / 100, 'words': float(len(solution_str.split()))}\n"
    )
    document(
        capsys,
        *("train", f"--model={model}", "--engine=transformers", "--iterations=1", "--limit=2", "--sandboxes=4"),
        *("--group-size=2", "--target-groups-per-iter=1", "--max-rollout-rounds=1", "--max-gen-tokens=12"),
        *("--reward=function", "--set=reward.options.function=length.py:compute_score", "--run-dir=trained"),
    )
    lines = [json.loads(line) for line in Path("trained/metrics.jsonl").read_text().splitlines()]
    (iteration,) = [line for line in lines if line["kind"] == "train"]
    assert iteration["faults"] == 0 and iteration["updates"] > 0 and iteration["reward_mean"] > 0
    assert iteration["logprob_difference_max"] <= 1e-4
    episode = json.loads(Path("trained/trajectories.jsonl").read_text().splitlines()[0])
    assert not episode["tools"] and len(episode["turns"]) == 1
    assert {"words", "correct", "execution"} <= episode["components"].keys()
