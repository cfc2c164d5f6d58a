"""Chat templates of shapes that published models have, none of which writes tools as finqa reads them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import LOOK_UP, as_prompt, make_tokenizer
from fixtures.codec_contexts import codec_context

from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall
from finqa_plugins.codecs import chat_template
from finqa_plugins.codecs.chat_template import ChatTemplate
from finqa_plugins.codecs.config import TemplateCodecConfig
from finqa_plugins.codecs.template_codec import TemplateCodec

_EACH = "{%- for m in messages %}"
_ASK = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
_ALTERNATE = (
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{%- endif %}"
)
_START = "<|im_start|>"
TEMPLATES = {
    "any role": _EACH + "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
    "no system, roles alternate, trims": "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not "
    "supported') }}{%- endif %}" + _EACH + _ALTERNATE + "{{- '<|im_start|>' + m.role + '\n' + m.content | trim + "
    "'<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
    "system moves to the last question, space before turns": "{%- if messages[0].role == 'system' %}{%- set system = "
    "messages[0].content %}{%- set messages = messages[1:] %}{%- endif %}" + _EACH + _ALTERNATE + "{%- if m.role == "
    "'user' %}{{- '[INST] ' + (system + '\n\n' if loop.last and system is defined else '') + m.content + ' [/INST]' }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content + '<|im_end|>' }}{%- endif %}{%- endfor %}",
    "ends with the next role": _EACH + "{{- '<|' + m.role + '|>\n' + m.content }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}",
    "two end tokens": _EACH + "{{- '<|im_start|>' + m.role + '<|box_start|>' + m.content + '<|box_end|><|im_end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|box_start|>' }}{%- endif %}",
    "another end for the last turn": _EACH + "{{- '<|im_start|>' + m.role + '<|box_start|>' + m.content + "
    "('<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>') }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}",
    "document end after the last turn": _EACH + "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{{- '<|im_start|>assistant\n' if add_generation_prompt else '<|endoftext|>' }}",
    "writes no ends": _EACH
    + "{{- {'system': '', 'user': ' USER: ', 'assistant': ' ASSISTANT: '}[m.role] + m.content }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- ' ASSISTANT:' }}{%- endif %}",
    "contents are parts": _EACH + "{{- '<|im_start|>' + m.role + '\n' }}{%- for part in m.content %}{{- part.text }}"
    "{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- endif %}",
    "dated": "{{- 'Today is ' + strftime_now('%Y-%m-%d') + '\n' }}" + _EACH + "{{- '<|im_start|>' + m.role + '\n' + "
    "m.content + '<|im_end|>\n' }}{%- endfor %}" + _ASK,
    "a macro and blank lines": "\n{%- macro turn(m) %}{{- '<|im_start|>' + m.role + '\n' + m.content + "
    "'<|im_end|>\n' }}{%- endmacro %}\n" + _EACH + "{{- turn(m) }}{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "{{- '<|im_start|>assistant\n' }}{%- endif %}",
}
ENDS_OTHERWISE = ("writes no ends", "another end for the last turn")
"""Earlier turns end with the token that was sampled, not as the template writes them."""
FOLDS = "no system, roles alternate, trims"
CALL = ToolCall(name="sql_query", arguments={"query": "SELECT '<|im_end|>' FROM t", "rows": 3})


def tokenizer_with(template: str) -> Any:
    tokenizer = make_tokenizer.__wrapped__("qwen3")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "[INST]", "[/INST]"]})
    tokenizer.chat_template = template
    if "<|im_end|>" not in template:
        tokenizer.eos_token = "<|user|>" if "<|' + m.role + '|>" in template else "<|endoftext|>"
    elif "'<|endoftext|>' if loop.last" in template:
        tokenizer.eos_token = "<|endoftext|>"
    return tokenizer


@cache
def codec_of(name: str) -> Any:
    today = datetime.now(UTC).strftime("%d %b %Y")
    return TemplateCodec(TemplateCodecConfig(date=today), codec_context(name), tokenizer_with(TEMPLATES[name]))


def chat_of(codec: Any, *messages: Message) -> list[dict[str, Any]]:
    """The messages as the template itself takes them."""
    chat: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in messages]
    if codec._template.adaptations.parts:
        return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in chat]
    return chat


def own_ids(name: str, codec: Any, *messages: Message) -> tuple[int, ...]:
    tokenizer = tokenizer_with(TEMPLATES[name])
    encoded = tokenizer.apply_chat_template(
        chat_of(codec, *messages), add_generation_prompt=True, return_dict=True, **codec._template.variables
    )
    return tuple(encoded["input_ids"])


SYSTEM, QUESTION = Message(role="system", content=" Be brief. "), Message(role="user", content="What is 1200 + 50?\n")
SAID, MORE = Message(role="assistant", content="1250"), Message(role="user", content="And {{ 2 }}?")


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_without_tools_the_ids_are_those_of_the_template(name: str) -> None:
    codec = codec_of(name)
    chats = [(QUESTION,), (QUESTION, SAID, MORE)]
    if name != FOLDS:
        chats += [(SYSTEM, QUESTION), (SYSTEM, QUESTION, SAID, MORE)]
    for messages in chats:
        assert codec.opening(Prompt(messages=messages, tools=())) == own_ids(name, codec, *messages)


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_with_tools_nothing_is_missing_and_calls_are_read_back(name: str) -> None:
    codec = codec_of(name)
    text = codec._decode(list(codec.opening(as_prompt("Be brief.", "How much?"))))
    assert not codec.writes_tools
    for part in ("Be brief.", "How much?", LOOK_UP.description, "- sql_query(query: string, rows?", "<tool_call>\n{"):
        assert part in text
    said = Message(role="assistant", content="So it is.", tool_call=CALL)
    turn = codec.parse(codec.assistant(said))
    assert (turn.tool_call, turn.words, turn.parse_error) == (CALL, "So it is.", "")
    assert codec.parse(codec.assistant(SAID)).text == "1250"
    assert codec.assistant(said)[-1] == codec.stop_ids[0]
    assert not codec.rewrites("tool"), "an episode with tools is one sequence"


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ENDS_OTHERWISE])
def test_an_export_renders_the_ids_of_an_episode(name: str) -> None:
    codec = codec_of(name)
    prompt = as_prompt("Be brief.", "How much?")
    call = ToolCall(name="sql_query", arguments={"query": "SELECT \u00e9", "rows": None})
    said = Message(role="assistant", content="", tool_call=call)
    ids = (*codec.opening(prompt), *codec.assistant(said), *codec.tool_reply("[[5]]", stopped=True))
    function = {"name": call.name, "arguments": dict(call.arguments)}
    chat = [
        *({"role": message.role, "content": message.content} for message in prompt.messages),
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "[[5]]", "name": "sql_query"},
    ]
    served = tokenizer_with(codec.chat_template())
    rendered = served.apply_chat_template(
        chat, tools=[tool.as_function() for tool in prompt.tools], add_generation_prompt=True, return_dict=True
    )
    assert tuple(rendered["input_ids"]) == ids


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_no_content_becomes_a_control_token(name: str) -> None:
    codec = codec_of(name)
    evil = "".join(token.content for token in codec._tokenizer.added_tokens_decoder.values())
    special = {number for number, token in codec._tokenizer.added_tokens_decoder.items() if token.special}

    def controls(text: str) -> list[int]:
        ids = codec.opening(as_prompt(text, text)) + codec.tool_reply(text, stopped=True)
        ids += codec.user_reply(text, stopped=False) + codec.assistant(Message(role="assistant", content=text))
        return [number for number in ids if number in special]

    assert controls(evil) == controls("x") and evil in codec._decode(list(codec.user_reply(evil, stopped=True)))


def test_a_template_that_drops_a_message_is_refused_by_name() -> None:
    drops = TEMPLATES["any role"].replace("in messages", "in messages[(1 if messages[0].role == 'assistant' else 0):]")
    codec = TemplateCodec(None, codec_context("m"), tokenizer_with(drops))
    opening = Prompt(messages=(Message(role="assistant", content="Hello."), QUESTION), tools=())
    with pytest.raises(ConfigError, match=r"leaves out the message of the assistant 'Hello\.'"):
        codec.opening(opening)


def test_the_ends_of_the_model_are_stops_as_well(tmp_path: Any) -> None:
    tokenizer = tokenizer_with(TEMPLATES["any role"])
    tokenizer.save_pretrained(tmp_path)
    other = tokenizer.convert_tokens_to_ids("<|box_end|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [other]}), encoding="utf-8")
    codec = TemplateCodec(None, codec_context(str(tmp_path)))
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|box_end|>", "<|endoftext|>"])
    assert codec.stop_ids == tuple(ends)
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"generation_config\.json is damaged"):
        TemplateCodec(None, codec_context(str(tmp_path)))


FOREVER = "{%- for a in range(99999) %}{%- for b in range(99999) %}{%- endfor %}{%- endfor %}"
EVER_LARGER = "{%- set ns = namespace(text='x') %}{%- for a in range(99) %}{%- set ns.text = ns.text + ns.text %}"
HOSTILE = {
    FOREVER: "takes longer than 0.3 s",
    EVER_LARGER + "{%- endfor %}": "needs more than 50 MB|memory",
    "{%- macro again() %}{{ again() }}{%- endmacro %}{{ again() }}": "nests too deeply",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "unsafe",
    "{{ messages.append(messages) }}": "unsafe",
}


@pytest.mark.parametrize(("source", "reason"), HOSTILE.items())
def test_a_hostile_template_is_refused_once(source: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LONGEST_S", 0.3 if "longer" in reason else 20.0)
    monkeypatch.setattr(chat_template, "MOST_MB", 50.0)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=reason):
        ChatTemplate(tokenizer_with(source), "m", {}, "01 Jan 2026").render([{"role": "user", "content": "1"}], None)
    with pytest.raises(ConfigError, match=r"[Tt]he chat template"):
        TemplateCodec(None, codec_context("m"), tokenizer_with(source))
    assert time.monotonic() - began < 60
