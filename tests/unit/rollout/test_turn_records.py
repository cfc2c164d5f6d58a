"""What a turn's record keeps of the reply behind it."""

from __future__ import annotations

from typing import Any

from finqa_cli.rollout.conversation import Reply
from finqa_cli.rollout.episode import _turn
from finqa_cli.types import AssistantTurn, Observation, Step, ToolCall


def test_a_turn_keeps_everything_of_its_reply() -> None:
    """A dropped `restarts` would train on two prompts as if they were one sequence."""
    call = ToolCall(name="look_up", arguments={})
    tokens: dict[str, Any] = {"prompt_ids": (1, 2), "restarts": True, "completion_ids": (3,), "logprobs": (-1.0,)}
    said: dict[str, Any] = {"text": "So: <call>", "words": "So:", "tool_call": call, "parse_error": "odd"}
    reply = Reply(turn=AssistantTurn(**said), stop="length", policy_version=7, **tokens)
    turn = _turn(reply, [Observation(text="ok")], 1.5)
    kept = (
        tokens | said | {"stop": "length", "policy_version": 7, "seconds": 1.5, "observation": Observation(text="ok")}
    )
    assert {name: getattr(turn, name) for name in kept} == kept
    assert turn.further_steps == ()


def test_calls_after_the_end_of_an_episode_have_no_reply() -> None:
    calls = [ToolCall(name=f"call{place}", arguments={}) for place in range(3)]
    replies = [Observation(text="0"), Observation(text="1", done=True)]
    turn = _turn(Reply(turn=AssistantTurn.calling(*calls)), replies, 1.0)
    assert turn.steps == tuple(
        Step(call=call, observation=reply) for call, reply in zip(calls, [*replies, None], strict=True)
    )
