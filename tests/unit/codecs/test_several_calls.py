"""Turns with several calls: written, read and answered as the chat templates do."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import CASES, LOOK_UP, as_prompt, codec_of, decode, rendered
from fixtures.codec_contexts import codec_context
from plain_families import write_llama_tokenizer

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.contracts import CallError, NoCallError
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Message, Prompt, ToolCall
from finqa_plugins.codecs.parsing import without_reasoning

CALLS = tuple(ToolCall(name="sql_query", arguments={"query": f"SELECT {place}", "rows": place}) for place in range(3))
REPLIES = ["[[0]]", "<|im_end|> 1", '{"two": 2}']
SINGLE = ("llama3",)
"""Families whose templates refuse several calls in one message."""


def _prompt() -> Prompt:
    opening = as_prompt("You analyse.", "How much?")
    return Prompt(messages=opening.messages, tools=(LOOK_UP,), several_calls=True)


def _said(calls: tuple[ToolCall, ...]) -> Message:
    return Message(role="assistant", content="", tool_call=calls[0], further_calls=calls[1:])


@pytest.mark.parametrize("name", [name for name in CASES if name not in SINGLE])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_calls_are_what_the_template_renders_and_are_read_back(name: str, count: int) -> None:
    codec = codec_of(name)
    prompt, calls, replies = _prompt(), CALLS[:count], ["[[0]]", "1", '{"two": 2}'][:count]
    opening = codec.opening(prompt)
    sampled = codec.assistant(_said(calls))
    assert codec.parse_calls(sampled).calls == calls
    heard = [Message(role="tool", content=text, name="sql_query") for text in replies]
    ids = (*opening, *sampled, *codec.tool_replies(replies, stopped=True))
    whole = rendered(codec, [*prompt.messages, _said(calls), *heard], prompt.tools)
    assert without_reasoning(decode(codec, ids)) == without_reasoning(whole)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SINGLE])
def test_a_session_that_takes_one_call_refuses_several(name: str) -> None:
    codec = codec_of(name)
    codec.opening(as_prompt("You analyse.", "How much?"))
    turn = codec.parse(codec.assistant(_said(CALLS)))
    assert turn.calls == ()
    assert turn.parse_error == "3 tool calls found. Make exactly one tool call per turn."


def test_control_tokens_in_one_of_several_replies_stay_text() -> None:
    codec = codec_of("qwen3")
    ids = codec.tool_replies(REPLIES, stopped=True)
    alone = codec.tool_replies(["[[0]]", "x", "y"], stopped=True)
    ends = codec.stop_ids[0]
    assert ids.count(ends) == alone.count(ends)
    assert "<|im_end|> 1" in decode(codec, ids)


def test_a_template_that_refuses_several_calls_gets_one_a_turn() -> None:
    codec = codec_of("llama3")
    codec.opening(_prompt())
    one = codec.parse_calls(codec.assistant(_said(CALLS[:1])))
    assert one.calls == CALLS[:1]
    assert "exactly one" in codec.parse_calls(codec.assistant(_said(CALLS))).parse_error


def test_the_plain_codec_says_and_takes_several_calls(tmp_path: Any) -> None:
    model = str(write_llama_tokenizer(tmp_path))
    codec = registry().create("codec", "plain", {}, codec_context(model))
    opening = codec.opening(_prompt())
    assert "one or several tools per turn" in codec._text.decode(opening)
    assert codec.parse_calls(codec.assistant(_said(CALLS))).calls == CALLS
    text = codec._text.decode(codec.tool_replies(REPLIES, stopped=True))
    assert [text.index(reply) for reply in REPLIES] == sorted(text.index(reply) for reply in REPLIES)
    assert text.count("<|tool|>") == 3


@pytest.mark.parametrize("name", ["hermes", "xml"])
def test_one_call_of_several_that_cannot_be_read_is_named(name: str) -> None:
    form = codec_context("m").call_formats[name]()
    text = "\n".join(map(form.render, CALLS))
    schemas = {"sql_query": LOOK_UP.parameters}
    assert form.find_all(text, schemas) == CALLS
    with pytest.raises(CallError, match="is not closed"):
        form.find_all(text.removesuffix("</tool_call>"), schemas)
    with pytest.raises(CallError):
        form.find_all(text + "\n<tool_call>\nnonsense\n</tool_call>", schemas)
    with pytest.raises(NoCallError):
        form.find_all("nothing", schemas)


def test_a_codec_without_several_calls_refuses_their_replies() -> None:
    from fixtures.toy_environment import ToyCodec

    assert ToyCodec().tool_replies(["3"], stopped=True) == ToyCodec().tool_reply("3", stopped=True)
    with pytest.raises(ConfigError, match="ToyCodec supports one call per turn, but this turn has 2"):
        ToyCodec().tool_replies(["3", "4"], stopped=True)


def test_a_demonstration_with_several_calls_learns_what_an_episode_samples() -> None:
    codec = codec_of("qwen3")
    prompt = _prompt()
    heard = [Message(role="tool", content=text, name="sql_query") for text in REPLIES]
    last = Message(role="assistant", content="7")
    sample = demonstration_sample(prompt, [_said(CALLS), *heard, last], codec)
    played = (
        *codec.opening(prompt),
        *codec.assistant(_said(CALLS)),
        *codec.tool_replies(REPLIES, stopped=True),
        *codec.assistant(last),
    )
    assert tuple(sample.token_ids) == played
    learned = [token for token, masked in zip(sample.token_ids, sample.loss_mask, strict=True) if masked]
    assert learned == [*codec.assistant(_said(CALLS)), *codec.assistant(last)]
