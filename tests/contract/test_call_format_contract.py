"""What every call format promises, run on every one that is registered and on a stranger's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from fixtures.codec_contexts import codec_context
from fixtures.plugin_entry_points import PACKAGE, entry
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import CallError, CallFormat, ChatCodec
from finqa_cli.extend import Registry, registry
from finqa_cli.types import Message, ToolCall

SCHEMAS: dict[str, Any] = {
    "look_up": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "integer"},
            "share": {"type": "number"},
            "flag": {"type": "boolean"},
            "parts": {"type": "array", "items": {}},
            "more": {"type": "object"},
        },
    }
}
MODEL = Path(__file__).parents[2] / "plugins" / "finqa_plugins" / "policies"
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
STRANGER = "bracketed"

# Texts with a format's own tags in them are what no format can carry: angle and square brackets are left out.
_text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>[]") | st.sampled_from("\n\t{}\"'\\")
)
_arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": _text,
        "number": st.integers(-(10**15), 10**15),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "parts": st.lists(_text | st.integers(), max_size=3),
        "more": st.dictionaries(_text, _text, max_size=3),
    },
)
_pieces = [
    "<tool_call>",
    "</tool_call>",
    "<function=look_up>",
    "<parameter=text>",
    "</parameter>",
    "[[",
    "]]",
    "{",
    "}",
]
_hostile = st.lists(st.sampled_from([*_pieces, *CONTROL, '"name": "f"', "\n", "\ud800", "\0"]) | st.text()).map("".join)


def _create(name: str) -> CallFormat:
    made: CallFormat = (
        importlib.import_module("finqa_example.bracketed").BracketedFormat(None)
        if name == STRANGER
        else registry().create("call_format", name, {})
    )
    return made


@pytest.fixture(params=[*(component.name for component in registry().components("call_format")), STRANGER])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(PACKAGE))
    return str(request.param)


def test_it_fulfils_the_protocol(name: str) -> None:
    form = _create(name)
    assert isinstance(form, CallFormat) and isinstance(form.separator, str)


def test_a_call_comes_back_with_the_words_before_it(name: str) -> None:
    form = _create(name)

    @given(arguments=_arguments, words=_text.map(str.strip).filter(lambda words: "{" not in words))
    def check(arguments: dict[str, Any], words: str) -> None:
        call = ToolCall(name="look_up", arguments=arguments)
        spoken = words + form.separator + form.render(call)
        found = form.find(spoken, SCHEMAS)
        assert (found.name, repr(dict(found.arguments))) == ("look_up", repr(arguments))
        assert form.words(spoken).strip() == words

    check()


def test_any_text_gives_a_call_or_a_reason(name: str) -> None:
    form = _create(name)
    valid = form.render(ToolCall(name="look_up", arguments={"text": "x"}))

    @given(text=_hostile | _hostile.map(lambda text: valid.replace("x", text)) | st.text().map(lambda t: t + valid * 2))
    def check(text: str) -> None:
        try:
            call = form.find(text, SCHEMAS)
        except CallError as error:
            assert str(error).strip()
        else:
            assert call.name and isinstance(form.words(text), str)

    check()


def test_several_calls_and_none_are_refused(name: str) -> None:
    form = _create(name)
    once = form.render(ToolCall(name="look_up", arguments={"text": "x"}))
    for text in ("", "42", once + "\n" + once):
        with pytest.raises(CallError):
            form.find(text, SCHEMAS)


@pytest.mark.parametrize("piece", [*_pieces, " \n", "<parameter=text></parameter>x", '{"a":'])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_texts_are_read_in_linear_time(name: str, piece: str) -> None:
    form = _create(name)
    head, tail = form.render(ToolCall(name="look_up", arguments={"text": "SLOT"})).split("SLOT")
    for text in (piece * (200_000 // len(piece)), head + piece * (200_000 // len(piece)) + tail):
        try:
            form.find(text, SCHEMAS)
        except CallError:
            continue


def _codec(name: str) -> ChatCodec:
    context = codec_context(str(MODEL))
    context = type(context)(
        model=context.model, call_formats={**context.call_formats, STRANGER: lambda: _create(STRANGER)}
    )
    codec: ChatCodec = registry().create("codec", "qwen3", {"call_format": name}, context)
    return codec


def test_control_strings_in_a_call_stay_text(name: str) -> None:
    codec: Any = _codec(name)

    def encoded(text: str) -> tuple[int, ...]:
        call = ToolCall(name="look_up", arguments={"text": f"a {text} b", "more": {f"k{text}": text}})
        return tuple(codec.assistant(Message(role="assistant", content=f"So {text}", tool_call=call)))

    added = codec._tokenizer.added_tokens_decoder
    controls = [[number for number in encoded(text) if number in added] for text in ("x", *CONTROL)]
    assert all(found == controls[0] for found in controls)
    for text in CONTROL:
        assert text in codec._decode(encoded(text))


def test_a_demonstrated_call_is_parsed_by_its_codec(name: str) -> None:
    codec = _codec(name)
    call = ToolCall(name="look_up", arguments={"text": "revenue \u00e9"})
    turn = codec.parse(codec.assistant(Message(role="assistant", content="So it is.", tool_call=call)))
    assert (turn.tool_call, turn.words, turn.parse_error) == (call, "So it is.", "")


def test_a_strangers_format_is_registered_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE))
    own = Registry([entry("bracketed_plugin")])
    assert [component.name for component in own.components("call_format")] == [STRANGER]
    assert isinstance(own.create("call_format", STRANGER, {}), CallFormat)
