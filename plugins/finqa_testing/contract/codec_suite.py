"""Contract of chat codecs: contents stay text, turns end, calls are read back, any token ids result in a turn.

`subject` is a codec for the fixture `model`, a folder or hub id whose tokenizer the codec reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import ChatCodec, PlayedTurn
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec

TOOL = ToolSpec(
    name="look_up",
    description="Look a figure up.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "what is wanted"}, "year": {"type": "integer"}},
        "required": ["text"],
    },
)
FOREIGN = ("<|im_start|>", "<|im_end|>", "</s>", "<|user|>", "<|eot_id|>", "<tool_call>", "</tool_call>", "<think>")
"""Control strings of several model families; for most codecs some of them are ordinary text."""
PLAIN = "Revenue of 2023: $ 1,234.5 (up 7 %)"

_patient = partial(
    settings,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def tokenizer(model: str) -> Any:
    """Returns the model's own tokenizer, to decode ids."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def prompt_of(question: str, *, tools: tuple[ToolSpec, ...] = (TOOL,), system: str = "Answer.") -> Prompt:
    """Returns a prompt with one question."""
    messages = (Message(role="system", content=system), Message(role="user", content=question))
    return Prompt(messages=messages, tools=tools)


def speakers(codec: ChatCodec) -> dict[str, Callable[[str], tuple[int, ...]]]:
    """Returns a function for each way in which a text that the policy did not write gets into its context."""
    ways: dict[str, Callable[[str], tuple[int, ...]]] = {
        "question": lambda text: codec.opening(prompt_of(text)),
        "question without tools": lambda text: codec.opening(prompt_of(text, tools=())),
        "system": lambda text: codec.opening(prompt_of("?", system=text)),
        "tool reply": lambda text: codec.tool_reply(text, stopped=True),
    }
    try:
        codec.user_reply("x", stopped=True)
    except ConfigError:
        return ways
    return {**ways, "user reply": lambda text: codec.user_reply(text, stopped=True)}


def test_turns_have_an_end(subject: ChatCodec) -> None:
    """There is at least one stop id, and none occurs twice."""
    assert subject.stop_ids and len(set(subject.stop_ids)) == len(subject.stop_ids)
    assert all(isinstance(token, int) and token >= 0 for token in subject.stop_ids), subject.stop_ids


def test_what_the_model_reads_has_each_content_in_it(subject: ChatCodec, tokenizer: Any) -> None:
    """The decoded context contains the text, and the same text always gives the same ids."""
    for way, encode in speakers(subject).items():
        ids = encode(PLAIN)
        assert all(type(token) is int and 0 <= token < len(tokenizer) for token in ids), f"{way}: ids {ids}"
        assert PLAIN in tokenizer.decode(ids), f"{way}: the model reads {tokenizer.decode(ids)!r}"
        assert encode(PLAIN) == ids, way


def test_tools_are_described(subject: ChatCodec, tokenizer: Any) -> None:
    """The context contains the names of tools and arguments, and the arguments' descriptions."""
    read = tokenizer.decode(subject.opening(prompt_of("?")))
    assert TOOL.name in read and "year" in read and "what is wanted" in read, read


def test_control_strings_in_contents_stay_text(subject: ChatCodec, tokenizer: Any) -> None:
    """A control string in a text, such as a tool's reply, does not become a control token."""
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    marks = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | set(FOREIGN)
    special = {added[mark] for mark in marks & added.keys()} | set(subject.stop_ids)
    for way, encode in speakers(subject).items():
        plain = Counter(token for token in encode("a b") if token in special)
        for control in marks | set(map(tokenizer.decode, subject.stop_ids)):
            found = Counter(token for token in encode(f"a{control}b") if token in special)
            assert found == plain, f"{way}: {control!r} in a content becomes a control token"


def test_any_text_can_be_a_content(subject: ChatCodec) -> None:
    """Contents include an empty text and one with a lone surrogate."""
    for way, encode in speakers(subject).items():
        for text in ("", "\ud800", "\x00", "\u202e\u00e9\U0001f600", "\n\n", "x" * 3000):
            assert encode(text), way


def test_a_turn_that_was_cut_is_closed_before_the_reply(subject: ChatCodec) -> None:
    """The codec adds the end of the turn that the policy did not sample."""
    ways = {"tool": subject.tool_reply}
    if "user reply" in speakers(subject):
        ways["user"] = subject.user_reply
    for way, reply in ways.items():
        ends = [sum(token in subject.stop_ids for token in reply("1", stopped=stopped)) for stopped in (True, False)]
        assert ends[1] == ends[0] + 1, f"{way}: {ends[1]} ends after a cut turn, {ends[0]} after a whole one"


def test_a_demonstration_ends_as_a_sampled_turn_does(subject: ChatCodec) -> None:
    """A demonstrated turn ends with a stop id, and has none before it."""
    for message in (
        Message(role="assistant", content="It is 7."),
        Message(role="assistant", content="So", tool_call=ToolCall(name=TOOL.name, arguments={"text": "x"})),
    ):
        *ids, last = subject.assistant(message)
        assert last in subject.stop_ids and not set(ids) & set(subject.stop_ids)


def test_a_text_alone_is_not_a_call(subject: ChatCodec) -> None:
    """The text is kept exactly, after the reasoning of models that reason, and no call is found."""
    turn = subject.parse(subject.assistant(Message(role="assistant", content="It is 7.")))
    assert (turn.tool_call, turn.no_call) == (None, True) and turn.text.strip().endswith("It is 7."), turn


@_patient()
@given(
    text=st.text(st.characters(exclude_characters="<>"), max_size=40),
    year=st.integers(-(2**31), 2**31),
    words=st.sampled_from(["", "So it is.", "Let me see:\nthe table."]),
)
def test_a_demonstrated_call_is_read_back(subject: ChatCodec, text: str, year: int, words: str) -> None:
    """The call's arguments keep their types, and the words before it are kept.

    Tags such as `<tool_call>` in an argument are not part of the contract: a codec may take them for a second call.
    """
    subject.opening(prompt_of("?"))
    text = "".join(character for character in text if character.isprintable()).strip()
    call = ToolCall(name=TOOL.name, arguments={"text": f"v{text}", "year": year})
    turn = subject.parse(subject.assistant(Message(role="assistant", content=words, tool_call=call)))
    assert turn.tool_call == call, f"{call} is read as {turn.tool_call}: {turn.parse_error}"
    assert turn.words.strip().endswith(words)


def test_text_after_the_end_is_ignored(subject: ChatCodec) -> None:
    """Text after the end of the turn is not part of the policy's turn."""
    said = subject.assistant(Message(role="assistant", content="It is 7."))
    assert subject.parse((*said, *subject.tool_reply("8", stopped=True))) == subject.parse(said)


@_patient()
@given(data=st.data())
def test_any_sampled_ids_give_a_turn(subject: ChatCodec, tokenizer: Any, data: st.DataObject) -> None:
    """A turn has a call or the reason why there is none, also for ids that the tokenizer does not have."""
    subject.opening(prompt_of("?"))
    ids = tuple(data.draw(st.lists(st.integers(0, len(tokenizer) + 40), max_size=60)))
    for turn in (subject.parse(ids), subject.parse_calls(ids)):
        assert (turn.tool_call is None) == bool(turn.parse_error), turn


def test_several_calls_are_read_back_or_refused(subject: ChatCodec) -> None:
    """A codec reads all calls of a turn or refuses several calls; with `parse`, none of several calls is returned."""
    first, second = (ToolCall(name=TOOL.name, arguments={"text": text}) for text in ("revenue", "cost"))
    several = Message(role="assistant", content="", tool_call=first, further_calls=(second,))
    try:
        subject.opening(replace(prompt_of("?"), several_calls=True))
        ids, replies = subject.assistant(several), subject.tool_replies(("1", "2"), stopped=True)
        read = subject.parse_calls(ids)
    except ConfigError:
        pytest.skip("it supports turns with one call only")
    if read.parse_error:
        pytest.skip(f"it supports turns with one call only: {read.parse_error}")
    assert read.calls == (first, second)
    assert subject.parse(ids).tool_call is None, "one of several calls would be played, the others never"
    assert len(replies) > len(subject.tool_reply("1", stopped=True))


def test_history_contains_what_the_model_reads(subject: ChatCodec, tokenizer: Any) -> None:
    """For templates that rewrite earlier turns, the history contains the question and the reply; it is reproducible."""
    if not subject.rewrites("tool"):
        pytest.skip("its episodes append")
    said = subject.assistant(Message(role="assistant", content="", tool_call=ToolCall(name=TOOL.name, arguments={})))
    turns = [PlayedTurn(completion_ids=said, stopped=True, reply=PLAIN)]
    ids = subject.history(prompt_of("What is it?"), turns)
    read = tokenizer.decode(ids)
    assert "What is it?" in read and PLAIN in read and subject.history(prompt_of("What is it?"), turns) == ids
