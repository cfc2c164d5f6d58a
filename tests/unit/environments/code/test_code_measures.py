from __future__ import annotations

from fixtures.code_play import environment, judged

from finqa_cli.types import Rewards, Status, Task, Trajectory


def trajectory(rewards: Rewards | None) -> Trajectory:
    task = Task(id="t", prompt="?", split="train", cluster="t")
    status = Status.COMPLETED if rewards else Status.SANDBOX_ERROR
    return Trajectory(id="x", task=task, member=0, seed=0, status=status, turns=(), rewards=rewards)


async def test_shares_are_of_episodes_with_a_verdict() -> None:
    played = environment()
    replies = (
        "    return list(xs)",
        "    return sorted(xs)",
        "    return (",
        "    return xs[0]",
        "    class Mine(Exception): pass\n    raise Mine",
        "",
        "    import os",
    )
    graded = [trajectory(await judged(played, "sorting", reply)) for reply in replies]
    assert played.measure([*graded, trajectory(None)]) == {
        "test_pass_rate": 0.2 / 7,
        "ban_rate": 2 / 7,
        "error_rate": 4 / 7,
        "error_kinds": {"IndexError": 1, "NoCode": 1, "Other": 1, "SyntaxError": 1},
    }


def test_faults_alone_have_no_figures() -> None:
    played = environment()
    assert played.measure([trajectory(None)]) == {} == played.measure([])
