"""Attempts of environments without sandboxes are replayed to be graded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from finqa_cli.contracts import Environment, Sandbox, Session, TextSession
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.evaluation.rescore import grade_again
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    ExecutionSpec,
    Message,
    Observation,
    Prompt,
    Rewards,
    Status,
    Step,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

TASK = Task(id="a", prompt="Add.", split="test", cluster="a", kind="")


class Adding(Session):
    """Adds numbers; the reward is their sum."""

    takes_text = True

    def __init__(self, noise: str) -> None:
        self.sum, self.noise, self.begun, self.closed = 0, noise, 0, False

    def prompt(self) -> Prompt:
        return Prompt(messages=(Message(role="user", content="Add."),), tools=())

    async def begin_turn(self, turn: AssistantTurn) -> None:
        self.begun += 1

    async def step(self, call: ToolCall) -> Observation:
        self.sum += int(call.arguments["number"])
        return Observation(text=f"{self.sum}{self.noise}")

    async def reply(self, text: str) -> Observation:
        return Observation(text=f"thanks for {text}", done=True)

    async def grade(self) -> Rewards:
        return Rewards(total=float(self.sum))

    async def close(self) -> None:
        self.closed = True


class Sums(Environment):
    def __init__(self, noise: str = "", sandbox: ExecutionSpec | None = None) -> None:
        self.noise, self.sandbox, self.opened = noise, sandbox, list[Adding]()

    def data(self) -> DataInfo:
        return DataInfo(name="sums", digest="")

    def splits(self) -> Sequence[str]:
        return ("test",)

    def tasks(self, split: str) -> Sequence[Task]:
        return (TASK,)

    def sandbox_spec(self) -> ExecutionSpec | None:
        return self.sandbox

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session | TextSession:
        assert task == TASK and seed == 7 and sandbox is None
        self.opened.append(Adding(self.noise))
        return self.opened[-1]


def add(number: int) -> ToolCall:
    return ToolCall(name="add", arguments={"number": number})


PLAYED = Trajectory(
    id="eval/a/0",
    task=TASK,
    member=0,
    seed=7,
    status=Status.COMPLETED,
    rewards=Rewards(total=0.0),
    turns=(
        Turn(
            text="add 1 and 2",
            tool_call=add(1),
            observation=Observation(text="1"),
            further_steps=(Step(call=add(2), observation=Observation(text="3")),),
        ),
        Turn(text="<tool", parse_error="no JSON", observation=Observation(text="Error: no JSON", is_error=True)),
        Turn(text="3", observation=Observation(text="thanks for 3", done=True)),
    ),
)


async def test_all_that_reached_the_session_is_repeated_in_order() -> None:
    environment = Sums()
    assert (await grade_again(environment, PLAYED)).total == 3.0
    (session,) = environment.opened
    assert session.closed and session.begun == 2, "the turn that could not be read did not reach it"


async def test_an_attempt_that_was_cut_is_graded_as_it_ended() -> None:
    assert (await grade_again(Sums(), replace(PLAYED, turns=PLAYED.turns[:0]))).total == 0.0


async def test_other_replies_are_no_ground_for_a_verdict() -> None:
    environment = Sums(noise="!")
    with pytest.raises(DataError, match="answers turn 1 of eval/a/0 other than it did"):
        await grade_again(environment, PLAYED)
    assert environment.opened[0].closed


async def test_what_needs_a_sandbox_is_refused() -> None:
    with pytest.raises(ConfigError, match="grades in its sandbox"):
        await grade_again(Sums(sandbox=ExecutionSpec(fresh=False)), PLAYED)
