"""An answer that cannot be read is returned to the policy, which has the form of answers in its tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import document
from fixtures.finqa_server import RunningServer, finqa_server

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.grading import grade
from finqa_cli.types import Status, ToolCall, Trajectory, Turn
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.finqa_tools import FORM

PROSE = "I looked at the table of the balance sheet, and it seems that it was rather large."


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("asking"), {"FINQA_GRADER": "strict-3"}) as running:
        yield running


def environment_of(server: RunningServer, tools: str = "own") -> FinQAEnvironment:
    config = FinQAConfig.model_validate({"grader": "strict-3", "tools": tools})
    return FinQAEnvironment(config, EnvironmentContext(snapshot=server.snapshot, max_turns=6))


@pytest.mark.parametrize(
    ("answers", "reward", "returned"),
    [
        (["6118"], 1.0, 0),
        ([PROSE, "6118"], 1.0, 1),
        (["5000"], 0.0, 0),
        ([PROSE, "6118 or 5000", "6118"], 1.0, 2),
        ([PROSE, PROSE, PROSE], 0.0, 2),
    ],
)
async def test_only_an_unreadable_answer_is_returned_and_at_most_twice(
    asking: RunningServer, answers: list[str], reward: float, returned: int
) -> None:
    environment = environment_of(asking)
    task = environment.tasks("train")[0]
    session = await environment.open(task, seed=1, sandbox=asking)
    assert FORM in session.prompt().tools[-1].description
    turns = []
    for number, answer in enumerate(answers):
        call = ToolCall(name="submit_answer", arguments={"answer": answer})
        observation = await session.step(call)
        assert (observation.done, observation.is_error) == (number == len(answers) - 1, number < returned)
        if observation.is_error:
            assert "cannot be read" in observation.text and FORM in observation.text
        turns.append(Turn(text="", tool_call=call, observation=observation, policy_version=0))
    verdict = await session.grade()
    await session.close()
    assert (verdict.total, verdict.components["asked_again"]) == (reward, returned)
    played = Trajectory(id="t", task=task, member=0, seed=1, turns=tuple(turns), status=Status.COMPLETED)
    assert await environment.regrade(played) == verdict


def test_the_examples_of_the_form_are_not_asked_again() -> None:
    asked = (
        ("1,234.5", "1234.5"),
        ("-5.2%", "-0.052"),
        ("$3.412 billion", "3412000000"),
        ("yes", "yes"),
        ("Alphabet Inc.", "Alphabet"),
        ("2022: 5; 2023: 6", "2022: 5, 2023: 6"),
    )
    for answer, truth in asked:
        verdict = grade(answer, truth, "strict")
        assert answer in FORM and verdict.reward == 1.0 and not verdict.again, answer


async def test_the_server_lists_the_same_form(asking: RunningServer) -> None:
    environment = environment_of(asking, "server")
    session = await environment.open(environment.tasks("train")[0], seed=1, sandbox=asking)
    assert session.prompt().tools[-1].description.endswith(f"{FORM}.")
    await session.close()


async def test_other_graders_return_nothing(server: RunningServer) -> None:
    environment = server.environment()
    session = await environment.open(environment.tasks("train")[0], seed=1, sandbox=server)
    assert FORM not in session.prompt().tools[-1].description
    assert (await session.step(ToolCall(name="submit_answer", arguments={"answer": PROSE}))).done
    assert "asked_again" not in (await session.grade()).components
    await session.close()


def test_an_evaluation_shows_how_many_answers_were_returned(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = document(["eval", "scripted", "--grader=strict-3", "--split=dev", "--limit=20", "--json"], capsys)
    assert (played["accuracy"], played["components"]["asked_again"]) == (1.0, 0.0)
