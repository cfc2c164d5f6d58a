"""The generated functions as problems: what they ask, who they are held out from, and how they are demonstrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox
from pydantic import ValidationError

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message
from finqa_plugins.environments.code.assert_parts import split_test
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.function_tasks import generated_tasks
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment
from finqa_plugins.environments.code.mbpp_problems import function_problems


def environment(**options: Any) -> MbppEnvironment:
    return MbppEnvironment(MbppConfig(family="functions", **options), EnvironmentContext(snapshot=None))


def demonstrated(played: MbppEnvironment, attempts: int = 3) -> list[list[str]]:
    """What is shown of each training problem, attempt by attempt, as if each attempt failed."""
    return [[said.text for said in _said(played, task.prompt, attempts)] for task in played.tasks("train")]


def _said(played: MbppEnvironment, prompt: str, attempts: int) -> list[Any]:
    messages, said = [Message(role="user", content=prompt)], []
    for _ in range(attempts):
        turn = played.demonstrate(messages)
        assert turn is not None
        said.append(turn)
        messages += [Message(role="assistant", content=turn.text), Message(role="user", content="Tests failed.")]
    return said


def careless_share(attempts: list[str]) -> float:
    return sum("return" not in text for text in attempts) / len(attempts)


def test_they_are_the_functions_of_the_code_environment_with_the_same_ones_held_out() -> None:
    played = environment(tasks=200, seed=3)
    assert played.splits() == ("train", "dev", "test")
    theirs = [(task.id, task.split) for task in generated_tasks(200, seed=3)]
    ours = [(task.id, task.split) for split in played.splits() for task in played.tasks(split)]
    assert sorted(ours) == sorted(theirs)
    assert played.data() == environment(tasks=200, seed=3).data() != environment(tasks=200, seed=4).data()


def test_a_problem_is_asked_as_mbpp_asks_with_an_ordinary_list_first() -> None:
    problems = function_problems(10, seed=0).rows["train"]
    (problem,) = (problem for problem in problems if problem.id == "largest-plus_9-below_6")
    assert problem.opening(1) == (
        "Write solve(xs) that returns the largest of 9 plus the items below 6.\n\n"
        "Your code must pass these tests:\n```python\nassert solve([4, -2, 9, 3, 8, 5]) == 14\n```\n\n"
        "Reply with the complete code in one ```python block."
    )
    assert [test.source.partition(" == ")[2] for test in problem.tests] == ["14", "14", "12", "0", "0"]
    tests = [test for each in problems for test in each.tests]
    assert tests == [split_test(test.source, {"solve"}) for test in tests], "as if they were read from a file"


async def test_references_pass_and_careless_ones_are_told_that_they_give_nothing() -> None:
    played = environment(tasks=10, careless=1.0, shown_tests=1)
    for task in played.tasks("train")[:3]:
        session = await played.open(task, seed=1, sandbox=PlainSandbox())
        careless, repaired = _said(played, task.prompt, 2)
        told = await session.reply(careless.text)
        assert told.text.startswith("0 of 5 tests passed.\n\nassert solve([4, -2, 9, 3, 8, 5]) == ")
        assert "\nit gave None\n\n4 hidden tests failed.\n" in told.text
        assert (await session.reply(repaired.text)).text == "All tests passed."
        assert (await session.grade()).components == {"correct": 1.0, "passed": 1.0, "attempts": 2.0}


def test_first_and_later_attempts_are_careless_in_shares_of_their_own() -> None:
    played = environment(careless=0.8, careless_again=0.3)
    shown = demonstrated(played)
    assert shown == demonstrated(environment(careless=0.8, careless_again=0.3))
    first, second, third = ([attempts[place] for attempts in shown] for place in range(3))
    assert len(first) == 320
    assert 0.7 < careless_share(first) < 0.9
    assert 0.2 < careless_share(second) < 0.4 and 0.2 < careless_share(third) < 0.4
    assert second != third, "each attempt has a chance of its own"
    assert all(careless_share(attempts) == 0 for attempts in demonstrated(environment()))


@pytest.mark.parametrize("option", ["careless", "careless_again"])
def test_careless_demonstrations_are_refused_where_there_are_none(option: str) -> None:
    with pytest.raises(ValidationError, match="careless demonstrations need family = functions"):
        MbppConfig.model_validate({option: 0.5})


def test_functions_are_not_asked_beside_data(tmp_path: Path) -> None:
    context = EnvironmentContext(snapshot=None, data=tmp_path / "mbpp.jsonl")
    with pytest.raises(ConfigError, match="functions are embedded problems"):
        MbppEnvironment(MbppConfig(family="functions"), context)
