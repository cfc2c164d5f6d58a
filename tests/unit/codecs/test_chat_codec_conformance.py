"""Every codec over every family: what it writes is what the family's own chat template renders."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from chat_families import CASES, CONTROL_STRINGS, LOOK_UP, THINKING, as_prompt, codec_of, controls, decode, rendered

from finqa_cli.contracts import ChatCodec, PlayedTurn
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.parsing import without_reasoning

HARMLESS = [
    "",
    "Company: Acme Inc\nQuestion: what?",
    "$(6) 50 % 'a' \"b\" \\ C:\\t",
    "\n\n # Tools {\u00e9\u4e2d\U0001f600}",
    " x \n",
    "{{ messages }} {% raw %}",
]
TEMPLATED = [name for name in CASES if name != "embedded"]
TOOL_CALL = ToolCall(name="sql_query", arguments={"query": 'SELECT "2024" FROM t -- \u00e9', "rows": 3})
# Texts that end a call's value or reasoning are what no format can carry: they are cut at the first such tag.
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "</parameter>", "</function>")
_plain = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t")).filter(
    lambda text: not any(tag in text for tag in _TAGS)
)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_plain, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(params=list(CASES))
def codec(request: pytest.FixtureRequest) -> Any:
    return codec_of(request.param)


def said(text: str = "", call: ToolCall | None = None) -> Message:
    return Message(role="assistant", content=text, tool_call=call)


def heard(text: str) -> Message:
    return Message(role="tool", content=text, name="sql_query")


def test_a_codec_fulfils_its_contract_and_stops_at_turn_ends(codec: Any) -> None:
    assert isinstance(codec, ChatCodec)
    assert controls(codec, codec.stop_ids)[0] in ("<|im_end|>", "<|eot_id|>")
    assert len(set(codec.stop_ids)) == len(codec.stop_ids) >= 1


@pytest.mark.parametrize("content", HARMLESS)
@pytest.mark.parametrize("tools", [(LOOK_UP,), ()], ids=["tools", "no tools"])
def test_an_opening_is_what_the_template_renders(codec: Any, content: str, tools: tuple[ToolSpec, ...]) -> None:
    messages = as_prompt(content, content).messages
    ids = codec.opening(Prompt(messages=messages, tools=tools))
    expected = rendered(codec, messages, tools)
    assert decode(codec, ids) == expected
    assert list(ids) == codec._encode(expected)


@pytest.mark.parametrize("content", HARMLESS)
def test_an_episode_is_what_the_template_renders(codec: Any, content: str) -> None:
    prompt = as_prompt("You analyse.", "q")
    history = [*prompt.messages]
    ids = [*codec.opening(prompt)]
    for turn in (said(call=TOOL_CALL), said("So 1."), said(call=ToolCall(name="sql_query", arguments={}))):
        history += [turn, heard(content)]
        ids += [*codec.assistant(turn), *codec.tool_reply(content, stopped=True)]
        # Templates may leave an empty reasoning block out of earlier turns; appending keeps what was played.
        assert without_reasoning(decode(codec, ids)) == without_reasoning(rendered(codec, history, prompt.tools))


@pytest.mark.parametrize("content", HARMLESS)
def test_an_episode_of_texts_is_what_the_template_renders(codec: Any, content: str) -> None:
    """Without tools the environment answers as the user."""
    prompt = Prompt(messages=as_prompt("You analyse.", "q").messages, tools=())
    history = [*prompt.messages]
    ids = [*codec.opening(prompt)]
    for turn in (said("def f(): ..."), said("So 1."), said("2")):
        history += [turn, Message(role="user", content=content)]
        ids += [*codec.assistant(turn), *codec.user_reply(content, stopped=True)]
        assert without_reasoning(decode(codec, ids)) == without_reasoning(rendered(codec, history, ()))


@pytest.mark.parametrize("name", THINKING)
def test_a_message_of_the_user_takes_the_reasoning_before_it_away(name: str) -> None:
    """As these templates have it, so the episode continues in a sequence without it."""
    codec = codec_of(name)
    assert codec.rewrites("user") and not codec.rewrites("tool")
    prompt = Prompt(messages=as_prompt("You analyse.", "q").messages, tools=())
    turn, reply = said("<think>\nI weigh.\n</think>\n\nSo 1."), Message(role="user", content="No.")
    played = PlayedTurn(completion_ids=codec.assistant(turn), stopped=True, reply=reply.content, role="user")
    ids = codec.history(prompt, [played])
    assert decode(codec, ids) == rendered(codec, [*prompt.messages, turn, reply], ())
    assert "weigh" not in decode(codec, ids) and "So 1." in decode(codec, ids)


@pytest.mark.parametrize("name", THINKING)
def test_reasoning_of_earlier_turns_stays_as_it_was_sampled(name: str) -> None:
    codec = codec_of(name)
    prompt = as_prompt("You analyse.", "q")
    turns = [said("<think>\nI weigh.\n</think>\n\n", TOOL_CALL), said("<think>\nDone, \u00e9.\n</think>\n\n42")]
    history = [prompt.messages[0], prompt.messages[1], turns[0], heard("[1]"), turns[1], heard("ok")]
    ids = [*codec.opening(prompt)]
    for turn, reply in zip(turns, ("[1]", "ok"), strict=True):
        ids += [*codec.assistant(turn), *codec.tool_reply(reply, stopped=True)]
    assert decode(codec, ids) == rendered(codec, history, prompt.tools)
    assert controls(codec, ids).count("</think>") == 2
    parsed = codec.parse(codec.assistant(turns[0]))
    assert (parsed.tool_call, parsed.parse_error) == (TOOL_CALL, "")


@pytest.mark.parametrize("name", TEMPLATED)
@pytest.mark.parametrize(
    "message",
    [said("42"), said(call=TOOL_CALL), said("So:", TOOL_CALL), said(call=ToolCall(name="f", arguments={"a": [1, {}]}))],
    ids=["words", "call", "words and call", "nested"],
)
def test_an_assistant_turn_is_what_the_template_renders(name: str, message: Message) -> None:
    codec = codec_of(name)
    question = Message(role="user", content="q")
    prompt = rendered(codec, [question])
    whole = rendered(codec, [question, message], prompt=False)
    if name == "llama3" and message.tool_call:  # its template leaves out the words beside a call
        whole = whole.replace('{"name"', f'{message.content}\n{{"name"' if message.content else '{"name"')
    ours = prompt + decode(codec, codec.assistant(message))
    assert ours in (whole.rstrip("\n"), whole)


@pytest.mark.parametrize("thought", ["", "I weigh, \u00e9."])
@pytest.mark.parametrize("words", ["", "So it is."])
def test_a_played_turn_is_demonstrated_as_it_was_sampled(codec: Any, thought: str, words: str) -> None:
    """Reasoning and words before a call included: the text without the call is what the record keeps beside it."""
    reasoning = f"<think>\n{thought}\n</think>\n\n" if codec._thinking else ""
    sampled = codec.assistant(said(reasoning + words, TOOL_CALL))
    codec.opening(as_prompt("s", "q", LOOK_UP))
    turn = codec.parse(sampled)
    assert turn.tool_call == TOOL_CALL
    assert codec.assistant(said(turn.words, turn.tool_call)) == sampled


def test_a_model_without_thinking_is_shown_no_reasoning(codec: Any) -> None:
    if not codec._thinking:
        shown = codec.assistant(said("<think>\nhm\n</think>\n\nSo:", TOOL_CALL))
        assert shown == codec.assistant(said("So:", TOOL_CALL))


def test_reasoning_whose_opening_stood_in_the_prompt_is_reasoning() -> None:
    codec = codec_of("qwen3 thinking")
    assert codec.assistant(said("hm\n</think>\n\n42")) == codec.assistant(said("<think>\nhm\n</think>\n\n42"))


def test_a_cut_turn_is_closed_before_the_reply(codec: Any) -> None:
    cut, stopped = codec.tool_reply("r", stopped=False), codec.tool_reply("r", stopped=True)
    assert cut == (codec.stop_ids[0], *stopped)


def test_a_turn_in_an_unclosed_reasoning_block_makes_no_call(codec: Any) -> None:
    thought = "<think>\nmaybe " + codec._format.render(TOOL_CALL)
    assert "not closed" in codec.parse(tuple(codec._encode(thought))).parse_error
    assert codec.parse(tuple(codec._encode(thought + "\n</think>\n\n" + codec._format.render(TOOL_CALL)))).tool_call


@pytest.mark.parametrize("name", list(CASES))
@given(arguments=st.dictionaries(st.from_regex(r"\A[a-z_]{1,9}\Z"), _json, max_size=4))
@example(arguments={"query": " \n padded \n", "rows": None})
@settings(max_examples=60, deadline=None)
def test_a_demonstrated_call_parses_back(name: str, arguments: dict[str, Any]) -> None:
    codec = codec_of(name)
    schema = {"type": "object", "properties": {key: {"type": _type(value)} for key, value in arguments.items()}}
    codec.opening(as_prompt("s", "q", ToolSpec(name="f", description="", parameters=schema)))
    call = ToolCall(name="f", arguments=arguments)
    ids = codec.assistant(said("Words.", call))
    turn = codec.parse(ids)
    assert turn.parse_error == ""
    assert turn.tool_call is not None
    expected = unicodedata.normalize("NFC", repr(arguments)) if _normalizes(codec) else repr(arguments)
    assert repr(dict(turn.tool_call.arguments)) == expected
    assert ids[-1] == codec.stop_ids[0]


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _normalizes(codec: Any) -> bool:
    return codec._tokenizer.backend_tokenizer.normalizer is not None


@pytest.mark.parametrize("name", list(CASES))
@given(ids=st.lists(st.integers(-5, 200_000) | st.integers(0, 720)))
@settings(max_examples=60, deadline=None)
def test_any_sampled_ids_give_a_turn(name: str, ids: list[int]) -> None:
    turn = codec_of(name).parse(tuple(ids))
    assert (turn.tool_call is None) == bool(turn.parse_error)


# --- Control-token strings in contents stay text ---


def _everywhere(content: str) -> dict[str, Message | ToolSpec]:
    """One message or tool for each place that takes content from outside."""
    call = ToolCall(name="sql_query", arguments={"query": f"a {content} b", f"k{content}": [content]})
    column = {"type": "string", "description": content, "enum": [content], content: 1}
    parameters = {"type": "object", "properties": {f"c{content}": column}}
    return {
        "system": Message(role="system", content=f"a{content}b"),
        "question": Message(role="user", content=content),
        "table cell": heard(f"[[1, {content!r}]]\n{content}"),
        "words": said(f"So {content}"),
        "call": said("", call),
        "words and call": said(content, call),
        "description": ToolSpec(name="f", description=f"{content} x", parameters={}),
        "column": ToolSpec(name="f", description="d", parameters=parameters),
    }


def _encoded(codec: Any, place: str, content: Message | ToolSpec) -> tuple[int, ...]:
    if isinstance(content, ToolSpec):
        return tuple(codec.opening(as_prompt("s", "q", content)))
    if content.role == "tool":
        return tuple(codec.tool_reply(content.content, stopped=False))
    if content.role == "assistant":
        few_shot = (Message(role="user", content="q"), content, heard("r"), Message(role="user", content="q"))
        opening = codec.opening(Prompt(messages=few_shot, tools=(LOOK_UP,)))
        return (*codec.assistant(content), *opening)
    system, question = as_prompt("s", "q").messages
    messages = (content, question) if place == "system" else (system, content)
    return tuple(codec.opening(Prompt(messages=messages, tools=(LOOK_UP,))))


@pytest.mark.parametrize("name", list(CASES))
def test_no_control_string_of_any_family_becomes_a_control_token_anywhere(name: str) -> None:
    codec = codec_of(name)
    harmless = {place: controls(codec, _encoded(codec, place, item)) for place, item in _everywhere("x").items()}
    for text in (*CONTROL_STRINGS, *(text.strip("<>/") for text in CONTROL_STRINGS)):
        for place, item in _everywhere(text).items():
            ids = _encoded(codec, place, item)
            assert controls(codec, ids) == harmless[place], (place, text)
            assert text in decode(codec, ids)


@pytest.mark.parametrize("name", list(CASES))
@given(parts=st.lists(st.sampled_from([*CONTROL_STRINGS, "<", "|>", "<|", "im_end", "\ue000", "0", "\n"]) | st.text()))
@example(parts=["<<|im_end|>|im_end|>", "<|im_end", "<|eot_id<|eot_id|>|>"])
@settings(max_examples=60, deadline=None)
def test_hostile_contents_read_as_the_template_would_render_them(name: str, parts: list[str]) -> None:
    codec = codec_of(name)
    content = "".join(parts)
    prompt = as_prompt(content, content)
    replies = (codec.tool_reply, codec.user_reply)
    ids = (*codec.opening(prompt), *(token for reply in replies for token in reply(content, stopped=False)))
    harmless = [*codec.opening(as_prompt("x", "x")), *(each for reply in replies for each in reply("x", stopped=False))]
    assert controls(codec, ids) == controls(codec, harmless)
    opened = decode(codec, codec.opening(prompt))
    expected = rendered(codec, prompt.messages, prompt.tools)
    assert unicodedata.normalize("NFC", opened) == unicodedata.normalize("NFC", expected)
