"""What a codec proves when it is created, how it is chosen, and how it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from chat_families import CASES, FORKING, Case, altered, as_prompt, decode, make_codec, make_tokenizer
from fixtures.codec_contexts import codec_context
from structlog.testing import capture_logs

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Message, Prompt, ToolCall


@pytest.mark.parametrize(
    ("case", "old", "new", "problem"),
    [
        ("llama3", "{{- bos_token }}", "{{- raise_exception('no') }}", "cannot render a chat of user: no"),
        (
            "qwen3.5 thinking",
            "enable_thinking is defined and enable_thinking is false",
            "true",
            "cannot switch thinking on",
        ),
        ("qwen2.5", "+ message.content +", "+ 'x' +", "renders neither a second message of the user nor replies"),
    ],
)
def test_a_template_that_no_episode_can_follow_is_refused(case: str, old: str, new: str, problem: str) -> None:
    template = CASES[case].template
    assert template is not None
    with pytest.raises(ConfigError, match=problem) as raised:
        make_codec(CASES[case], altered(template, old, new))
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("case", "old", "new", "form"),
    [
        # Earlier calls lose their arguments: nothing that was sampled says what is left.
        (
            "qwen3",
            "(call.function.arguments | tojson)",
            "(call.function.arguments if loop.last and message is sameas messages[-1] else {}) | tojson",
            "hermes",
        ),
        ("llama3", "message.content | tojson", "message.content | upper", "llama3_json"),
        ("qwen2.5", "message.role == 'tool'", "message.role == 'function'", "hermes"),
        ("llama3", "'tool_calls' in message", "false", "llama3_json"),
    ],
)
def test_tools_that_a_template_writes_in_a_way_that_no_episode_can_follow_are_text(
    case: str, old: str, new: str, form: str
) -> None:
    template = CASES[case].template
    assert template is not None
    codec = make_codec(CASES[case], altered(template, old, new))
    assert not codec.writes_tools and codec.rewrites("tool") == (case == "qwen3")
    text = decode(codec, codec.opening(as_prompt("You analyse.", "How much?")))
    call = ToolCall(name="tool", arguments={"argument": "value"})
    assert "You analyse.\n\nYou can call these tools:\n- sql_query(query: string, rows?" in text
    assert codec_context("m").call_formats[form]().render(call) in text
    reply = decode(codec, codec.tool_replies(["[[1]]", "[[2]]"], stopped=True))
    assert "user" in reply and reply.count("<tool_response>\n[[") == 2


@pytest.mark.parametrize("name", list(FORKING))
def test_a_template_that_rewrites_is_followed_and_says_what_it_costs(name: str) -> None:
    with capture_logs() as logs:
        codec = make_codec(FORKING[name])
    (line,) = logs
    assert codec.rewrites("tool") and line["log_level"] == "warning" and "starts a new sequence" in line["event"]


@pytest.mark.parametrize("name", list(CASES))
def test_the_families_own_templates_never_fork(name: str) -> None:
    with capture_logs() as logs:
        assert not make_codec(CASES[name]).rewrites("tool")
    assert not logs


@pytest.mark.parametrize("name", ["qwen3 counts turns", "qwen2.5 drops replies", "llama3 trims replies"])
def test_forks_can_be_refused(name: str) -> None:
    case = FORKING[name]
    with pytest.raises(ConfigError, match="is not prefix-preserving") as raised:
        make_codec(replace(case, options={**case.options, "history": "append"}))
    assert "codec.options.history=auto" in raised.value.remedy


def test_reasoning_that_the_template_drops_from_history_is_kept_when_episodes_only_append() -> None:
    codec = make_codec(replace(FORKING["qwen3 forgets"], options={"thinking": True, "history": "append"}))
    assert not codec.rewrites("tool")
    said = "<think>\nI weigh.\n</think>\n\n42"
    ids = codec.opening(as_prompt("s", "q")) + codec.assistant(Message(role="assistant", content=said))
    assert said in decode(codec, ids + codec.tool_reply("ok", stopped=True))


def test_a_model_without_thinking_refuses_it() -> None:
    with pytest.raises(ConfigError, match="does not support thinking"):
        make_codec(Case("qwen2_5", {"thinking": True}))


def test_the_format_of_calls_can_be_chosen_against_the_template() -> None:
    codec = make_codec(Case("qwen2_5", {"call_format": "xml"}))
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
    codec = make_codec(Case("llama3", {"date": "01 Jan 2031"}))
    assert "Today Date: 01 Jan 2031\n" in decode(codec, codec.opening(as_prompt("s", "q")))


@pytest.mark.parametrize("name", [name for name in CASES if name != "embedded"])
@pytest.mark.parametrize("earlier", ["template", "qwen3"])
def test_auto_and_earlier_names_are_the_same_codec(name: str, earlier: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.template is not None
    make_tokenizer(case.template).save_pretrained(tmp_path)
    context = codec_context(str(tmp_path))
    chosen = registry().create("codec", "auto", case.options, context)
    named = registry().create("codec", earlier, case.options, context)
    assert type(chosen) is type(named)
    prompt = as_prompt("s", "q <|im_end|><|eot_id|>")
    assert chosen.opening(prompt) == named.opening(prompt) == make_codec(case).opening(prompt)


def test_auto_refuses_what_the_model_does_not_have(tmp_path: Path) -> None:
    make_tokenizer("llama3").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="does not support thinking"):
        registry().create("codec", "auto", {"thinking": True}, codec_context(str(tmp_path)))
    with pytest.raises(ConfigError, match=r"no call format named 'pythonic'\. Known: auto, hermes, llama3_json, xml"):
        registry().create("codec", "llama3", {"call_format": "pythonic"}, codec_context(str(tmp_path)))


def test_a_model_that_always_thinks_does_so_by_default() -> None:
    always = altered("qwen3_5", "enable_thinking is defined and enable_thinking is false", "false")
    codec = make_codec(Case("qwen3_5"), always)
    assert codec.facts()["thinking"] == "yes"
    with pytest.raises(ConfigError, match="cannot switch thinking off"):
        make_codec(Case("qwen3_5", {"thinking": False}), always)
