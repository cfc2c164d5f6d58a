"""What a codec proves when it is created, how it is chosen, and how it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import CASES, Case, as_prompt, decode, make_codec, make_tokenizer

from finqa_cli.contracts import CodecContext
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Message, Prompt, ToolCall


def altered(template: str, old: str, new: str) -> Any:
    """The tokenizer of a family with a changed chat template."""
    tokenizer = copy.copy(make_tokenizer(template))
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return tokenizer


@pytest.mark.parametrize(
    ("case", "old", "new", "problem"),
    [
        # A turn counter in the header: turn 2's opening is not what turn 1's was.
        ("qwen2.5", "'<|im_start|>assistant' +", "'<|im_start|>assistant' + loop.index|string +", "prefix-preserving"),
        # Earlier tool replies are left out.
        (
            "qwen3",
            "+ message.content + '\\n</tool_response>'",
            "+ (message.content if loop.last else '') + '\\n</tool_response>'",
            "prefix-preserving",
        ),
        ("llama3", "message.content | tojson", "message.content | upper", "rewrites tool messages in an unknown way"),
        ("qwen2.5", "message.role == 'tool'", "message.role == 'function'", "no tool messages"),
        ("llama3", "'tool_calls' in message", "false", "none of the known formats"),
        (
            "llama3",
            "{{- bos_token }}",
            "{{- raise_exception('no') }}",
            "cannot render a chat of user, assistant, tool: no",
        ),
        ("qwen3.5", "enable_thinking is false", "false", "cannot switch thinking off"),
        (
            "qwen3.5 thinking",
            "enable_thinking is defined and enable_thinking is false",
            "true",
            "cannot switch thinking on",
        ),
    ],
)
def test_a_template_that_does_not_append_is_refused(case: str, old: str, new: str, problem: str) -> None:
    template = CASES[case].template
    assert template is not None
    with pytest.raises(ConfigError, match=problem) as raised:
        make_codec(CASES[case], altered(template, old, new))
    assert raised.value.remedy


def test_reasoning_that_the_template_drops_from_history_is_kept() -> None:
    """As DeepSeek-R1's template does: only what follows the reasoning stays."""
    forgetful = altered("qwen3", "loop.index0 > asked.last and (loop.last or reasoning)", "false")
    codec = make_codec(CASES["qwen3 thinking"], forgetful)
    said = "<think>\nI weigh.\n</think>\n\n42"
    ids = codec.opening(as_prompt("s", "q")) + codec.assistant(Message(role="assistant", content=said))
    assert said in decode(codec, ids + codec.tool_reply("ok", stopped=True))


def test_a_model_without_thinking_refuses_it() -> None:
    with pytest.raises(ConfigError, match="has no thinking"):
        make_codec(Case("qwen3", "qwen2_5", {"thinking": True}))


def test_a_tokenizer_of_another_family_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no <\|eot_id\|> token"):
        make_codec(CASES["llama3"], make_tokenizer("qwen3"))
    with pytest.raises(ConfigError, match=r"has no <\|im_end\|> token"):
        make_codec(CASES["qwen3"], make_tokenizer("llama3"))


def test_the_format_of_calls_can_be_chosen_against_the_template() -> None:
    codec = make_codec(Case("qwen2.5", "qwen2_5", {"tool_calls": "xml"}))
    call = ToolCall(name="f", arguments={"a": "1"})
    ids = codec.assistant(Message(role="assistant", content="", tool_call=call))
    assert decode(codec, ids).startswith("<tool_call>\n<function=f>")
    assert codec.parse(ids).tool_call == call


def test_a_prompt_that_the_template_refuses_is_a_config_error() -> None:
    codec = make_codec(CASES["llama3"])
    with pytest.raises(ConfigError, match="no first user message"):
        codec.opening(Prompt(messages=(Message(role="system", content="s"),), tools=as_prompt("", "").tools))


def test_llamas_prompt_does_not_depend_on_the_day() -> None:
    codec = make_codec(CASES["llama3"])
    assert "Today Date: 26 Jul 2024\n" in decode(codec, codec.opening(as_prompt("s", "q")))
    codec = make_codec(Case("llama3", "llama3", {"date": "01 Jan 2031"}))
    assert "Today Date: 01 Jan 2031\n" in decode(codec, codec.opening(as_prompt("s", "q")))


@pytest.mark.parametrize("name", [name for name in CASES if name != "embedded"])
def test_auto_chooses_the_family_of_the_tokenizer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.template is not None
    make_tokenizer(case.template).save_pretrained(tmp_path)
    context = CodecContext(model=str(tmp_path))
    chosen = registry().create("codec", "auto", case.options, context)
    named = registry().create("codec", case.codec, case.options, context)
    assert type(chosen) is type(named)
    prompt = as_prompt("s", "q <|im_end|><|eot_id|>")
    assert chosen.opening(prompt) == named.opening(prompt) == make_codec(case).opening(prompt)


def test_auto_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    llama = make_tokenizer("llama3")
    llama.save_pretrained(tmp_path / "llama")
    with pytest.raises(ConfigError, match="has no thinking"):
        registry().create("codec", "auto", {"thinking": True}, CodecContext(model=str(tmp_path / "llama")))
    with pytest.raises(ConfigError, match="has no option 'thinking'"):
        registry().create("codec", "qwen2.5", {"thinking": True}, CodecContext(model=str(tmp_path / "llama")))
    with pytest.raises(ConfigError, match="tool_calls"):
        registry().create("codec", "llama3", {"tool_calls": "pythonic"}, CodecContext(model=str(tmp_path / "llama")))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (tmp_path / "llama" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("<|eot_id|>", "<|turn|>"), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    with pytest.raises(ConfigError, match="No codec fits"):
        registry().create("codec", "auto", {}, CodecContext(model=str(tmp_path)))
