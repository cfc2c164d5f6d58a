"""Learning that cannot happen: before training, and after a run without an informative group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.training.rl.preflight import find_obstacle, is_informative
from finqa_cli.types import Credit, Group, Rewards, Status, Task, Trajectory, Turn
from finqa_testing.tiny_models import make_tiny_qwen3

TASK = Task(id="q", prompt="?", split="train", cluster="c")


def group(rewards: Sequence[float | None], error: str = "") -> Group:
    members = tuple(
        Trajectory(
            id=f"t/{number}",
            task=TASK,
            member=number,
            seed=0,
            status=Status.SANDBOX_ERROR if reward is None else Status.COMPLETED,
            turns=(Turn(text="?", parse_error=error),),
            rewards=None if reward is None else Rewards(total=reward),
        )
        for number, reward in enumerate(rewards)
    )
    return Group(task=TASK, trajectories=members)


KEPT, DROPPED = Credit(advantages=(1.0, -1.0)), Credit(advantages=(None, None), dropped="equal")


@pytest.mark.parametrize(
    ("groups", "credits", "informative"),
    [
        ([group([1.0, 0.0])], [KEPT], True),
        ([group([0.0, 0.0]), group([1.0, 0.0])], [DROPPED, KEPT], True),
        ([group([0.0, 0.0]), group([1.0, 1.0])], [DROPPED, DROPPED], False),
        ([group([0.0, 0.0])], [KEPT], False),  # of a method that keeps every group
        ([group([None, 0.0])], [KEPT], False),
    ],
)
def test_a_kept_group_and_different_rewards_are_informative(
    groups: list[Group], credits: list[Credit], informative: bool
) -> None:
    assert is_informative(groups, credits) is informative


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([group([0.0, 0.0], error="no call")], "2 of the policy's 2 turns have no valid tool call (2 episodes at 1"),
        ([group([0.0, 0.0])], "Every attempt of 2 episodes at 1 questions earned 0, so no group"),
        ([group([1.0, 1.0]), group([0.0, None])], "earned the same in its group, 0 to 1, so no group"),
        ([group([None, None])], ""),
    ],
)
def test_what_keeps_a_policy_from_learning_is_named(groups: list[Group], reason: str) -> None:
    obstacle = find_obstacle(groups)
    assert (obstacle is None) == (not reason)
    if obstacle is not None:
        assert reason in obstacle.message and "--no-preflight" in obstacle.remedy and obstacle.exit_code == 4


def test_a_reward_of_the_user_is_named_as_a_possible_cause() -> None:
    obstacle = find_obstacle([group([0.0, 0.0])], "mine.py")
    assert obstacle is not None
    assert obstacle.remedy.startswith("correct mine.py if right and wrong answers earn the same; choose questions")


SLOW = """
import asyncio

class Slow:
    made = 0

    @staticmethod
    def tasks():
        return [f"What is {number} times {number}?" for number in range(40)]

    def __init__(self):
        Slow.made += 1

    async def reset(self):
        await asyncio.sleep(600 if Slow.made > QUICK else 0)

    def reward(self, answer):
        return 0.5
"""


def train_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *more: str, quick: int) -> int:
    pytest.importorskip("torch", reason="needs finqa[train]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("finqa_cli.training.rl.preflight.LONGEST_S", seconds)
    Path("slow.py").write_text(SLOW.replace("QUICK", str(quick)))
    model = str(make_tiny_qwen3(tmp_path / "tiny"))
    small = ["--group-size=2", "--max-gen-tokens=2", "--target-groups-per-iter=1", "--set=pool.max_concurrent_play=2"]
    return main(["train", "--environment=slow.py", f"--model={model}", "--run-dir=run", *small, *more])


def test_groups_that_were_played_in_time_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_slowly(tmp_path, monkeypatch, 8.0, "--group-size=4", quick=16) == 4
    assert "Every attempt of 16 episodes at 4 questions earned 0.5" in capsys.readouterr().err
    assert not Path("run").exists()


def test_training_begins_where_too_little_was_played_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--iterations=1", "--max-rollout-rounds=1"]
    assert train_slowly(tmp_path, monkeypatch, 1e-3, *run, quick=1000) == 4
    told = capsys.readouterr()
    assert "Preflight: 0 groups were played in 0.001 s, too few for a decision." in told.out + told.err
    assert "No group of 1 iterations was informative" in told.err


SMALL = ["--model=embedded", "--sandboxes=2", "--group-size=2", "--target-groups-per-iter=1", "--max-rollout-rounds=1"]


def test_the_look_ends_as_soon_as_no_call_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    asked = ["--group-size=8", "--max-gen-tokens=1", "--sandboxes=2", "--max-steps=2"]
    assert main(["train", "--model=embedded", *asked, "--run-dir=run"]) == 4
    assert "have no valid tool call (16 episodes at" in capsys.readouterr().err


def test_training_without_readable_calls_or_differences_is_not_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    train = ["train", *SMALL, "--iterations=1", "--limit=1", "--max-gen-tokens=1", "--max-steps=2"]
    assert main([*train, "--run-dir=first"]) == 4
    told = capsys.readouterr()
    assert "have no valid tool call" in told.err and "fix: teach it the format: finqa sft" in told.err
    assert "Training" not in told.out and not Path("first").exists()
    assert main([*train, "--no-preflight", "--run-dir=second"]) == 4
    told = capsys.readouterr()
    assert "Training ended without an update." in told.out + told.err
    assert "No group of 1 iterations was informative" in told.err and "Training complete!" not in told.out + told.err
