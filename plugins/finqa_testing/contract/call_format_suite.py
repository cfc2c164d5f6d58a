"""Contract of call formats: calls that were written are read back, and any text results in a call or a CallError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import CallError, CallFormat
from finqa_cli.types import ToolCall

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
# No format can represent texts that contain its own tags, so angle and square brackets are left out.
_text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>[]") | st.sampled_from("\n\t{}\"'\\")
)
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadlines: a slow test on a busy machine is no fault of the format."""
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
_hostile = st.lists(st.sampled_from([*_pieces, '"name": "f"', "\n", "\ud800", "\0"]) | st.text()).map("".join)


def test_a_call_comes_back_with_the_words_before_it(subject: CallFormat) -> None:
    """A call is read back with its name, its arguments and their types, and the text before it."""

    @_patient
    @given(arguments=_arguments, words=_text.map(str.strip).filter(lambda words: "{" not in words))
    def check(arguments: dict[str, Any], words: str) -> None:
        call = ToolCall(name="look_up", arguments=arguments)
        spoken = words + subject.separator + subject.render(call)
        found = subject.find(spoken, SCHEMAS)
        assert (found.name, repr(dict(found.arguments))) == ("look_up", repr(arguments))
        assert subject.words(spoken).strip() == words

    check()


def test_any_text_gives_a_call_or_a_reason(subject: CallFormat) -> None:
    """A model may write any text; a text that cannot be read results in a CallError with the reason."""
    valid = subject.render(ToolCall(name="look_up", arguments={"text": "x"}))

    @_patient
    @given(text=_hostile | _hostile.map(lambda text: valid.replace("x", text)) | st.text().map(lambda t: t + valid * 2))
    def check(text: str) -> None:
        try:
            call = subject.find(text, SCHEMAS)
        except CallError as error:
            assert str(error).strip()
        else:
            assert call.name and isinstance(subject.words(text), str)

    check()


def test_several_calls_and_none_are_refused(subject: CallFormat) -> None:
    """The method `find` reads exactly one call."""
    once = subject.render(ToolCall(name="look_up", arguments={"text": "x"}))
    for text in ("", "42", once + "\n" + once):
        with pytest.raises(CallError):
            subject.find(text, SCHEMAS)


@pytest.mark.parametrize("piece", [*_pieces, " \n", "<parameter=text></parameter>x", '{"a":'])
@pytest.mark.timeout(30)  # it prevents hanging and is not a measurement
def test_hostile_texts_are_read_in_linear_time(subject: CallFormat, piece: str) -> None:
    """The text is one piece repeated many times, alone and inside of a call."""
    head, tail = subject.render(ToolCall(name="look_up", arguments={"text": "SLOT"})).split("SLOT")
    for text in (piece * (200_000 // len(piece)), head + piece * (200_000 // len(piece)) + tail):
        try:
            subject.find(text, SCHEMAS)
        except CallError:
            continue
