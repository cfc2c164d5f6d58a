"""What every call format promises, run on every one that is registered and on a stranger's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from fixtures.codec_contexts import codec_context
from fixtures.plugin_entry_points import PACKAGE, entry

from finqa_cli.contracts import CallFormat, ChatCodec
from finqa_cli.extend import Registry, registry
from finqa_cli.types import Message, ToolCall
from finqa_testing.contract.call_format_suite import *  # noqa: F403  the tests themselves

MODEL = Path(__file__).parents[2] / "plugins" / "finqa_plugins" / "policies"
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
STRANGER = "bracketed"


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


@pytest.fixture
def subject(name: str) -> CallFormat:
    return _create(name)


def _codec(name: str) -> ChatCodec:
    context = codec_context(str(MODEL))
    context = type(context)(
        model=context.model, call_formats={**context.call_formats, STRANGER: lambda: _create(STRANGER)}
    )
    codec: ChatCodec = registry().create("codec", "template", {"call_format": name}, context)
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
