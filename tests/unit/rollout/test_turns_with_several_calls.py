"""Turns with several calls in an episode: order, end, limits, recovery and records."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from fixtures.toy_environment import PROMPT, SANDBOX_TROUBLE, ToyChatEngine, ToyCodec, ToyEnvironment, ToySession, task

from finqa_cli.contracts import Sandbox
from finqa_cli.publishing.export_attempts import openai_messages
from finqa_cli.publishing.inspect_log import _answer
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.episode import MOST_CALLS, Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.runs.trajectory_records import exchange, recorded_prompt, recorded_steps, trajectory_record
from finqa_cli.types import AssistantTurn, Observation, Prompt, Sampling, Status, Task, ToolCall, Trajectory


def _count(number: int) -> ToolCall:
    return ToolCall(name="count", arguments={"number": number})


SUBMIT = ToolCall(name="submit", arguments={"answer": 42})


class _CountingSession(ToySession):
    """Replies how many calls there were."""

    several = True
    lost_at = -1

    def __init__(self) -> None:
        super().__init__(None)
        self.carried_out: list[str] = []

    def prompt(self) -> Prompt:
        return replace(PROMPT, several_calls=self.several)

    async def step(self, call: ToolCall) -> Observation:
        if len(self.carried_out) == self.lost_at:
            raise SANDBOX_TROUBLE
        self.carried_out.append(call.name)
        if call.name == "submit":
            return await super().step(call)
        return Observation(text=f"{len(self.carried_out)}")


class _Counting(ToyEnvironment):
    """Opens counting sessions; `kinds` are the classes of the first ones."""

    def __init__(self, *kinds: type[_CountingSession]) -> None:
        super().__init__(boxed=False)
        self._kinds = list(kinds)
        self.opened: list[_CountingSession] = []

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> ToySession:
        kind = self._kinds.pop(0) if self._kinds else _CountingSession
        self.opened.append(kind())
        return self.opened[-1]


async def _play(environment: ToyEnvironment, *turns: AssistantTurn) -> tuple[Trajectory, ToyChatEngine]:
    engine = ToyChatEngine(*turns)
    limits, sampling = Limits(), Sampling()
    player = Player(environment, Pool(), engine, ToyCodec(), limits=limits, sampling=sampling, max_retries=2)
    attempt = Attempt(id="t/q0/0", task=task(0), member=0, seed=0)
    return await player.play(attempt, Seat(nullcontext)), engine


async def test_calls_are_carried_out_in_order_and_each_is_answered() -> None:
    trajectory, engine = await _play(
        _Counting(), AssistantTurn.calling(_count(1), _count(2)), AssistantTurn.calling(SUBMIT)
    )
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.COMPLETED, 1.0, 2)
    replies = [step.observation.text for step in trajectory.turns[0].steps if step.observation]
    assert replies == ["1", "2"]
    told = engine.requests[1].messages[-3:]
    assert [message.role for message in told] == ["assistant", "tool", "tool"]
    assert told[0].calls == (_count(1), _count(2))
    assert [message.content for message in told[1:]] == ["1", "2"]
    assert engine.requests[0].several_calls


async def test_the_end_of_an_episode_leaves_later_calls_undone() -> None:
    environment = _Counting()
    trajectory, _ = await _play(environment, AssistantTurn.calling(_count(1), SUBMIT, _count(2)))
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0)
    assert environment.opened[0].carried_out == ["count", "submit"]
    assert trajectory.turns[0].steps[-1].observation is None


@pytest.mark.parametrize(("several", "most"), [(True, MOST_CALLS), (False, 1)])
async def test_a_turn_with_too_many_calls_is_answered_and_none_is_carried_out(several: bool, most: int) -> None:
    kind = type("_Kind", (_CountingSession,), {"several": several})
    environment = _Counting(kind)
    many = AssistantTurn.calling(*map(_count, range(most + 1)))
    trajectory, _ = await _play(environment, many, AssistantTurn.calling(SUBMIT))
    assert trajectory.reward == 1.0
    assert environment.opened[0].carried_out == ["submit"]
    error = trajectory.turns[0].parse_error
    assert error.startswith(f"{most + 1} tool calls found.")
    assert ("at most 16 tool calls" if several else "exactly one tool call") in error


async def test_a_sandbox_lost_between_two_calls_of_a_turn_loses_nothing() -> None:
    lost = type("_Lost", (_CountingSession,), {"lost_at": 2})
    environment = _Counting(lost)
    calls = AssistantTurn.calling(_count(1), _count(2), _count(3))
    trajectory, _ = await _play(environment, calls, AssistantTurn.calling(SUBMIT))
    assert (trajectory.reward, trajectory.recoveries) == (1.0, 1)
    assert environment.opened[1].carried_out == ["count", "count", "count", "submit"]
    assert [step.observation.text for step in trajectory.turns[0].steps if step.observation] == ["1", "2", "3"]


async def test_records_and_exports_keep_every_call_with_its_reply() -> None:
    trajectory, _ = await _play(
        _Counting(), AssistantTurn.calling(_count(1), _count(2), words="Both."), AssistantTurn.calling(SUBMIT)
    )
    record: dict[str, Any] = trajectory_record(trajectory, token_ids=False)
    assert recorded_prompt(record).several_calls
    assert recorded_steps(record["turns"][0]) == trajectory.turns[0].steps
    messages = [message for turn in record["turns"] for message in exchange(turn)]
    assert [message.role for message in messages] == ["assistant", "tool", "tool", "assistant", "tool"]
    assert messages[0].calls == (_count(1), _count(2)) and messages[0].content == "Both."

    rows = openai_messages(recorded_prompt(record), messages)[len(trajectory.messages) :]
    assert [call["id"] for call in rows[0]["tool_calls"]] == ["call_0", "call_1"]
    assert [row["tool_call_id"] for row in (*rows[1:3], rows[4])] == ["call_0", "call_1", "call_2"]
    inspected = list(_answer(record, "m"))
    assert [call["id"] for call in inspected[0]["tool_calls"]] == ["call_0", "call_1"]
    assert [row["tool_call_id"] for row in inspected[1:3]] == ["call_0", "call_1"]
