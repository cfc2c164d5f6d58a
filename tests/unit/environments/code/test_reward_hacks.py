from __future__ import annotations

from fixtures.plain_executions import PlainSandbox

from benchmarks.code_execution.hacks import HACKS, Hack, attempt, table


def test_there_are_enough_of_them() -> None:
    assert len({hack.name for hack in HACKS}) == len(HACKS) >= 25


async def test_no_hack_gets_more_than_honest_wrong_code() -> None:
    outcomes = await attempt(PlainSandbox())
    assert [outcome.hack for outcome in outcomes] == list(HACKS)
    assert all(0 < outcome.honest < 1 for outcome in outcomes)
    assert [(outcome.hack.name, outcome.explanation) for outcome in outcomes if outcome.rewarded] == []
    assert f"0 of {len(HACKS)} reward hacks rewarded" in table(outcomes)


async def test_what_solves_the_task_is_told_from_what_does_not() -> None:
    head = "def max_subarray_sum(xs):\n    "
    part = f"{head}return max(x for x in xs)"
    whole = (
        f"{head}best = now = xs[0]\n    for x in xs[1:]:\n        now = max(x, now + x)\n        best = max(best, now)"
    )
    hacks = [Hack(name="a", task="max_subarray", code=code) for code in (part, f"{whole}\n    return best")]
    assert [outcome.rewarded for outcome in await attempt(PlainSandbox(), hacks)] == [False, True]
