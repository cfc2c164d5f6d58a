"""Python problems with feedback through the whole product: rollouts, evaluation and training, with real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.isolation import needs_isolation
from fixtures.openai_server import openai_server, says
from fixtures.stops import StopsAt

from finqa_cli.app import main
from finqa_cli.errors import InterruptedRun
from finqa_cli.settings import Settings
from finqa_cli.training.rl.dry_run import dry_run
from finqa_testing.tiny_models import make_tiny_qwen3

pytestmark = pytest.mark.usefixtures("empty_folder")

MBPP = "--environment=mbpp"
FEW = ("--num-steps=2", "--batch-size=2", "--num-generations=2")


@pytest.fixture(autouse=True)
def _isolated() -> None:
    needs_isolation()


def records(run: str | Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / name).read_text().splitlines()]


def test_a_dry_run_plays_each_problem_once_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", MBPP, "--dry-run", "--engine=scripted", *FEW, "--group-size=1", "--run-dir=once"]
    assert main(given) == 0
    assert (
        len({each["task"]["id"] for each in records("once", "trajectories.jsonl")})
        == 4
        == len(records("once", "trajectories.jsonl"))
    )
    assert main([*given[:2], "--group-size=1"]) == 78
    assert "needs at least 2" in capsys.readouterr().err


def test_rollouts_without_training_of_the_references(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", MBPP, "--dry-run", "--engine=scripted", *FEW, "--run-dir=dry"]) == 0
    captured = capsys.readouterr()
    for line in ("Model: the scripted engine", "Problems: 22", "Iterations: 2", "Batch size: 2"):
        assert f"\n{line}\n" in captured.err
    assert "\n  Iteration 1: reward=1.000, success=100.0% (4/4), time=" in captured.err
    assert "  Total trajectories: 8\n  Successful: 8 (100.0%)\n  Iterations completed: 2\n" in captured.out
    assert "  pass_at_1_by_attempt.1: 1\n" in captured.out
    first, second = records("dry", "metrics.jsonl")
    assert (first["iteration"], second["iteration"], first["kind"]) == (1, 2, "rollout")
    assert first["measures"]["attempts_mean"] == 1.0 and first["reward_mean"] == 1.0
    played = records("dry", "trajectories.jsonl")
    assert len(played) == 8 and {each["iteration"] for each in played} == {1, 2}
    assert [message["role"] for message in played[0]["messages"]] == ["system", "user"]
    assert played[0]["turns"][0]["observation"]["text"] == "All tests passed."
    assert main(["train", "--resume=dry"]) == 78 and "`finqa train --dry-run`" in capsys.readouterr().err


def test_feedback_reaches_a_served_model_as_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    """The first attempt is wrong; what is told of it is in the next request, and the second attempt is right."""
    row = {"task_id": 700, "text": "Add.", "code": "", "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    Path("one.jsonl").write_text(json.dumps(row))

    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        sign = "-" if len(body["messages"]) == 2 else "+"
        return says(f"```python\ndef add(a, b):\n    return a {sign} b\n```")

    with openai_server(answer) as server:
        given = ["train", MBPP, "--dry-run", "--engine=openai", "--model=analyst", "--data=one.jsonl", *FEW]
        result = document([*given, "--batch-size=1", "--set", f"engine.options.base_url={server.url}"], capsys)
    assert (result["trajectories"], result["successful"], result["steps"]) == (4, 4, 2)
    assert result["measures"] == {
        "pass_at_1_by_attempt": {"1": 0.0, "2": 1.0, "3": 1.0},
        "attempts_mean": 2.0,
        "repair_rate": 1.0,
    }
    told = next(body for body in server.asked if len(body["messages"]) == 4)["messages"]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert "assert add(1, 2) == 3\nit gave -1" in told[3]["content"] and not server.asked[0].get("tools")


def test_an_evaluation_reports_the_figures_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["eval", "scripted", MBPP, "--split=test", "--max-attempts=2", "--dataset-limit=3", "--run-dir=e"]
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "accuracy 1.000" in shown and "\n  pass_at_1_by_attempt.2: 1\n" in shown and "question type" not in shown
    report = json.loads(Path("e/report.json").read_text())
    assert report["measures"] == {"pass_at_1_by_attempt": {"1": 1.0, "2": 1.0}, "attempts_mean": 1.0}
    assert report["episodes"] == 3 and json.loads(Path("e/metrics.json").read_text())["measures"] == report["measures"]


def test_one_iteration_trains_on_episodes_of_several_turns(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    """What the policy sampled carries loss; question and feedback do not."""
    pytest.importorskip("torch", reason="needs finqa[train]")
    model = make_tiny_qwen3(empty_folder / "tiny")
    capsys.readouterr()  # transformers' progress
    Path("length.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return len(solution_str) / 9\n"
    )
    document(
        [
            *("train", MBPP, f"--model={model}", "--engine=transformers", "--iterations=1", "--limit=1"),
            *("--sandboxes=2", "--group-size=2", "--target-groups-per-iter=1", "--max-rollout-rounds=1"),
            *("--max-gen-tokens=6", "--max-attempts=2", "--run-dir=trained", "--save-token-ids"),
            *("--reward=function", "--set=reward.options.function=length.py:compute_score"),
        ],
        capsys,
    )
    (iteration,) = [line for line in records("trained", "metrics.jsonl") if line["kind"] == "train"]
    assert iteration["updates"] == 1 and iteration["faults"] == 0 and iteration["turns_mean"] == 2.0
    assert iteration["logprob_difference_max"] <= 1e-4
    assert iteration["measures"]["pass_at_1_by_attempt"] == {"1": 0.0, "2": 0.0}
    played = [each for each in records("trained", "trajectories.jsonl") if each["phase"] == "train"]
    sampled = sum(turn["completion_tokens"] for each in played for turn in each["turns"])
    given = sum(turn["prompt_tokens"] for each in played for turn in each["turns"])
    assert iteration["loss_tokens"] == sampled and iteration["tokens"] == sampled + given
    assert all(each["turns"][1]["prompt_tokens"] > 20 for each in played)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--dataset-split=elsewhere"], 65, "has no split 'elsewhere'"),
        (["--data=nowhere.jsonl"], 65, "nowhere.jsonl: this file does not exist"),
        (["--max-attempts=0"], 78, "max_attempts"),
        (["--environment=finqa", "--max-attempts=2"], 78, "has no option 'max_attempts'"),
        (["--environment=finqa-text", "--dataset-limit=2"], 78, "has no option 'dataset_limit'"),
        (["--resume=somewhere"], 2, "--dry-run"),
        (["--pairs=somewhere"], 2, "--dry-run"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str
) -> None:
    assert main(["train", MBPP, "--dry-run", "--engine=scripted", *arguments]) == status
    assert told in capsys.readouterr().err and not Path("runs").exists()


async def test_a_stop_lets_running_episodes_finish_and_sums_up(empty_folder: Path) -> None:
    class Told(StopsAt):
        lines: list[str] = []  # noqa: RUF012 - one instance

        def line(self, text: str) -> None:
            self.lines.append(text)

    reporter = Told("rollout", 2)
    settings = Settings.model_validate(
        {
            "environment": {"name": "mbpp"},
            "engine": {"name": "scripted"},
            "sandbox": {"name": "local"},
            "pool": {"sandboxes": 2},
            "train": {"iterations": 5, "target_groups_per_iter": 2, "group_size": 2},
        }
    )
    with pytest.raises(InterruptedRun) as raised:
        await dry_run(settings, empty_folder / "run", reporter=reporter, stopper=reporter.stopper)
    assert raised.value.exit_code == 130
    assert "Total trajectories: 4" in reporter.lines[-1] and "Iterations completed: 1" in reporter.lines[-1]
    assert len(records("run", "trajectories.jsonl")) == 4 and len(records("run", "metrics.jsonl")) == 1
    assert records("run", "events.jsonl")[-1]["status"] == "interrupted"
