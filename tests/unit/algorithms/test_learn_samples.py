from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.samples import attach_rows, demonstration_sample, trajectory_samples
from finqa_cli.contracts import ChatCodec
from finqa_cli.errors import DataError
from finqa_cli.types import (
    AssistantTurn,
    Message,
    Prompt,
    Sample,
    Status,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

TASK = Task(id="q1", prompt="?", split="train", cluster="ACME")


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(id="train/q1/0", task=TASK, member=0, seed=1, status=Status.COMPLETED, turns=turns)


class ByteCodec(ChatCodec):
    """A complete codec over bytes: 256 opens, 257 ends an assistant turn, 258 frames a tool reply."""

    stop_ids = (257,)

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        return (256, *"|".join(message.content for message in prompt.messages).encode())

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        return (*(() if stopped else (257,)), 258, *text.encode(), 258)

    def user_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        return (*(() if stopped else (257,)), 259, *text.encode(), 259)

    def assistant(self, message: Message) -> tuple[int, ...]:
        call = json.dumps(dict(message.tool_call.arguments)) if message.tool_call else ""
        return (*(message.content + call).encode(), 257)

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        return AssistantTurn(text=bytes(token for token in completion_ids if token < 256).decode())


ids = st.lists(st.integers(0, 999), max_size=6).map(tuple)


@st.composite
def turn_lists(draw: st.DrawFn) -> list[Turn]:
    turns = []
    for number in range(draw(st.integers(1, 5))):
        completion = draw(ids)
        turns.append(
            Turn(
                prompt_ids=(1, *draw(ids)) if number == 0 or (restarts := draw(st.booleans())) else draw(ids),
                restarts=number > 0 and restarts,
                completion_ids=completion,
                logprobs=tuple(draw(st.floats(-9, -0.001)) for _ in completion),
            )
        )
    return turns


def sequences(turns: list[Turn]) -> list[list[Turn]]:
    """The turns of each sequence in which something was sampled."""
    starts = [number for number, turn in enumerate(turns) if number == 0 or turn.restarts]
    cut = [turns[start:end] for start, end in zip(starts, [*starts[1:], len(turns)], strict=True)]
    return [part for part in cut if any(turn.completion_ids for turn in part)]


@given(turns=turn_lists(), advantage=st.floats(-3, 3))
def test_each_sequence_is_a_sample_with_loss_on_sampled_tokens_only(turns: list[Turn], advantage: float) -> None:
    samples = trajectory_samples(trajectory(*turns), advantage)
    assert sum(sample.loss_tokens for sample in samples) == sum(len(turn.completion_ids) for turn in turns)
    for sample, part in zip(samples, sequences(turns), strict=True):
        check_sample(sample, part, advantage)


def check_sample(sample: Sample, turns: list[Turn], advantage: float) -> None:
    sampled = [token for turn in turns for token in turn.completion_ids]
    places = range(len(sample.token_ids))
    assert sample.token_ids.tolist() == [token for turn in turns for token in turn.prompt_ids + turn.completion_ids]
    assert [sample.token_ids[place] for place in places if sample.loss_mask[place]] == sampled
    logprobs = [np.float32(value) for turn in turns for value in turn.logprobs]
    assert [sample.logprobs[place] for place in places if sample.loss_mask[place]] == logprobs
    assert all(sample.advantages[place] == (advantage if sample.loss_mask[place] else 0.0) for place in places)
    assert all(sample.logprobs[place] == 0.0 for place in places if not sample.loss_mask[place])
    assert not sample.loss_mask[0]
    assert sample.loss_tokens == len(sampled)


def test_nothing_sampled_is_no_sample() -> None:
    assert trajectory_samples(trajectory(Turn(prompt_ids=(1, 2))), 1.0) == ()
    assert trajectory_samples(trajectory(), 1.0) == ()


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (Turn(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0,)), "2 sampled ids but 1 log-prob"),
        (Turn(prompt_ids=(), completion_ids=(2,), logprobs=(-1.0,)), "starts with a sampled id"),
        (Turn(restarts=True, completion_ids=(2,), logprobs=(-1.0,)), "starts with a sampled id"),
    ],
)
def test_a_damaged_trajectory_is_refused(turn: Turn, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        trajectory_samples(trajectory(turn), 1.0)


PROMPT = Prompt(messages=(Message(role="system", content="S"), Message(role="user", content="U")), tools=())
CALL = ToolCall(name="sql_query", arguments={"query": "select 1"})


@given(replies=st.lists(st.text(max_size=8), max_size=4), tail=st.booleans(), role=st.sampled_from(["tool", "user"]))
def test_a_demonstration_masks_in_what_the_assistant_says(replies: list[str], tail: bool, role: Any) -> None:
    codec = ByteCodec()
    messages: list[Message] = []
    for reply in replies:
        messages += [Message(role="assistant", content="", tool_call=CALL), Message(role=role, content=reply)]
    if tail or not messages:
        messages.append(Message(role="assistant", content="7"))
    sample = demonstration_sample(PROMPT, messages, codec)
    said = [token for message in messages if message.role == "assistant" for token in codec.assistant(message)]
    assert (259 if role == "tool" else 258) not in sample.token_ids
    chosen = [token for token, masked in zip(sample.token_ids, sample.loss_mask, strict=True) if masked]
    assert chosen == said
    assert sample.token_ids[-1] == 257
    assert sample.loss_mask[-1]
    assert tuple(sample.token_ids[: len(codec.opening(PROMPT))]) == codec.opening(PROMPT)
    assert set(sample.advantages) <= {0.0, 1.0}


@pytest.mark.parametrize(
    "roles", [[], ["tool"], ["assistant", "assistant"], ["assistant", "system"], ["assistant", "tool", "tool"]]
)
def test_a_demonstration_must_alternate(roles: list[str]) -> None:
    messages = [Message(role=role, content="x") for role in roles]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="alternate"):
        demonstration_sample(PROMPT, messages, ByteCodec(), name="d1")


def test_proximal_logprobs_join_their_samples() -> None:
    samples = [
        Sample(token_ids=(1, token), loss_mask=(False, True), logprobs=(0.0, -1.0), advantages=(0.0, 1.0))
        for token in (2, 3)
    ]
    joined = attach_rows(samples, proximal_logprobs=[(0.0, -2.0), (0.0, -3.0)])
    assert [sample.proximal_logprobs.tolist() for sample in joined] == [[0.0, -2.0], [0.0, -3.0]]
    assert [sample.token_ids.tolist() for sample in joined] == [[1, 2], [1, 3]]
    assert [sample.logprobs.tolist() for sample in joined] == [[0.0, -1.0]] * 2
    with pytest.raises(ValueError, match="1 rows of proximal_logprobs for 2 samples"):
        attach_rows(samples, proximal_logprobs=[(0.0, -2.0)])
