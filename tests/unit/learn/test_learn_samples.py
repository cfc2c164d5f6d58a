from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import DataError
from finqa_cli.learn import demonstration_messages, demonstration_sample, trajectory_sample
from finqa_cli.types import AssistantTurn, Message, Observation, Prompt, Status, Task, ToolCall, Trajectory, Turn

TASK = Task(id="q1", prompt="?", split="train", cluster="ACME")


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(id="train/q1/0", task=TASK, member=0, seed=1, status=Status.COMPLETED, turns=turns)


class ByteCodec:
    """A complete codec over bytes: 256 opens, 257 ends an assistant turn, 258 frames a tool reply."""

    stop_ids = (257,)

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        return (256, *"|".join(message.content for message in prompt.messages).encode())

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        return (*(() if stopped else (257,)), 258, *text.encode(), 258)

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
                prompt_ids=(1, *draw(ids)) if number == 0 else draw(ids),
                completion_ids=completion,
                logprobs=tuple(draw(st.floats(-9, -0.001)) for _ in completion),
            )
        )
    return turns


@given(turns=turn_lists(), advantage=st.floats(-3, 3))
def test_a_sample_is_the_episode_with_loss_on_sampled_tokens_only(turns: list[Turn], advantage: float) -> None:
    sample = trajectory_sample(trajectory(*turns), advantage)
    sampled = [token for turn in turns for token in turn.completion_ids]
    if sample is None:
        assert not sampled
        return
    places = range(len(sample.token_ids))
    assert sample.token_ids == tuple(token for turn in turns for token in turn.prompt_ids + turn.completion_ids)
    assert [sample.token_ids[place] for place in places if sample.loss_mask[place]] == sampled
    logprobs = [value for turn in turns for value in turn.logprobs]
    assert [sample.logprobs[place] for place in places if sample.loss_mask[place]] == logprobs
    assert all(sample.advantages[place] == (advantage if sample.loss_mask[place] else 0.0) for place in places)
    assert all(sample.logprobs[place] == 0.0 for place in places if not sample.loss_mask[place])
    assert not sample.loss_mask[0]
    assert sample.loss_tokens == len(sampled)


def test_nothing_sampled_is_no_sample() -> None:
    assert trajectory_sample(trajectory(Turn(prompt_ids=(1, 2))), 1.0) is None
    assert trajectory_sample(trajectory(), 1.0) is None


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (Turn(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0,)), "2 sampled ids but 1 log-prob"),
        (Turn(prompt_ids=(), completion_ids=(2,), logprobs=(-1.0,)), "starts with a sampled id"),
    ],
)
def test_a_damaged_trajectory_is_refused(turn: Turn, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        trajectory_sample(trajectory(turn), 1.0)


PROMPT = Prompt(messages=(Message(role="system", content="S"), Message(role="user", content="U")), tools=())
CALL = ToolCall(name="sql_query", arguments={"query": "select 1"})


@given(replies=st.lists(st.text(max_size=8), max_size=4), tail=st.booleans())
def test_a_demonstration_masks_in_what_the_assistant_says(replies: list[str], tail: bool) -> None:
    codec = ByteCodec()
    messages: list[Message] = []
    for reply in replies:
        messages += [Message(role="assistant", content="", tool_call=CALL), Message(role="tool", content=reply)]
    if tail or not messages:
        messages.append(Message(role="assistant", content="7"))
    sample = demonstration_sample(PROMPT, messages, codec)
    said = [token for message in messages if message.role == "assistant" for token in codec.assistant(message)]
    chosen = [token for token, masked in zip(sample.token_ids, sample.loss_mask, strict=True) if masked]
    assert chosen == said
    assert sample.token_ids[-1] == 257
    assert sample.loss_mask[-1]
    assert sample.token_ids[: len(codec.opening(PROMPT))] == codec.opening(PROMPT)
    assert set(sample.advantages) <= {0.0, 1.0}


@pytest.mark.parametrize("roles", [[], ["tool"], ["assistant", "assistant"], ["assistant", "user"]])
def test_a_demonstration_must_alternate(roles: list[str]) -> None:
    messages = [Message(role=role, content="x") for role in roles]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="alternate"):
        demonstration_sample(PROMPT, messages, ByteCodec(), name="d1")


def test_turns_become_messages_to_imitate() -> None:
    turns = (
        Turn(text="<call>", tool_call=CALL, observation=Observation(text="[1]")),
        Turn(text="hm", parse_error="no call", observation=Observation(text="Error", is_error=True)),
    )
    assert demonstration_messages(trajectory(*turns)) == (
        Message(role="assistant", content="", tool_call=CALL),
        Message(role="tool", content="[1]", name="sql_query"),
        Message(role="assistant", content="hm"),
        Message(role="tool", content="Error"),
    )
