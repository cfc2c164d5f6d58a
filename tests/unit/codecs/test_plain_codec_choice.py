"""How the `plain` codec is chosen, what it refuses, and how it tells tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import LOOK_UP, as_prompt, make_tokenizer
from fixtures.codec_contexts import codec_context
from fixtures.plain_models import write_llama_tokenizer
from plain_families import ENDS, codec_of, folder_of, tokenizer_of, without_template
from structlog.testing import capture_logs

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.plain import PlainCodec, tools_text
from finqa_plugins.codecs.template_codec import TemplateCodec


def _auto(folder: Path, **options: Any) -> Any:
    return registry().create("codec", "auto", options, codec_context(str(folder)))


@pytest.mark.parametrize("family", list(ENDS))
def test_auto_chooses_it_where_there_is_no_chat_template_and_says_so(family: str, tmp_path: Path) -> None:
    folder = without_template(folder_of(family), tmp_path)
    with capture_logs() as logs:
        codec = _auto(folder, call_format="xml")
    assert isinstance(codec, PlainCodec)
    assert codec.opening(as_prompt("s", "q")) == codec_of(family, "xml").opening(as_prompt("s", "q"))
    (line,) = logs
    assert line["log_level"] == "info" and "no chat template" in line["event"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}<|eot_id|>{% endfor %}",
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
    ],
    ids=["Llama 3.0", "refuses tools"],
)
def test_runs_of_earlier_versions_have_it_where_the_template_has_no_tools(tmp_path: Path, template: str) -> None:
    make_tokenizer("llama3").save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert isinstance(_auto(tmp_path), TemplateCodec)
    codec = _auto(tmp_path, version=1)
    assert isinstance(codec, PlainCodec)
    opening = codec.opening(as_prompt("s", "q"))
    begin, end = tokenizer_of(tmp_path).convert_tokens_to_ids(["<|begin_of_text|>", "<|eot_id|>"])
    assert codec.stop_ids == (end,) and opening[0] == begin and opening.count(end) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"thinking": True}, "does not support thinking"),
        ({"history": "template"}, "no chat template, which"),
        ({"call_format": "pythonic"}, r"no call format named 'pythonic'\. Known: auto, hermes, llama3_json, xml"),
    ],
)
def test_options_that_it_does_not_have_are_refused(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        _auto(without_template(folder_of("gpt2"), tmp_path), **options)
    assert caught.value.remedy


def _damaged(folder: Path, damage: str) -> None:
    config = folder / "tokenizer_config.json"
    facts = json.loads(config.read_text(encoding="utf-8"))
    if damage == "no end":
        facts |= {"tokenizer_class": "PreTrainedTokenizerFast"}
        facts.pop("eos_token")
    elif damage == "lower case":
        backend = json.loads(tokenizer_of(folder).backend_tokenizer.to_str())
        backend["normalizer"] = {"type": "Lowercase"}
        (folder / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
        facts |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    elif damage == "bytes":
        facts = {"tokenizer_class": "ByT5Tokenizer"}
    elif damage == "torn":
        (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    elif damage == "empty":
        (folder / "tokenizer.json").unlink()
    config.write_text(json.dumps(facts), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("no end", "has no end token"),
        ("lower case", r"does not keep text as it is: ' two  spaces.*Caf\u00e9.* becomes ' two  spaces.*caf\u00e9"),
        ("bytes", "has no fast form"),
        ("torn", "cannot be loaded"),
        ("empty", r"has no tokenizer\.json"),
    ],
)
def test_a_tokenizer_that_cannot_serve_is_refused(tmp_path: Path, damage: str, problem: str) -> None:
    _damaged(write_llama_tokenizer(tmp_path), damage)
    with pytest.raises(ConfigError, match=problem) as caught:
        registry().create("codec", "plain", {}, codec_context(str(tmp_path)))
    assert caught.value.remedy and "\n" not in caught.value.message


def test_tools_are_described_with_all_that_their_schemas_say() -> None:
    form = codec_context("m").call_formats["hermes"]()
    parameters = {
        "properties": {
            "year": {"type": "integer", "title": "Year", "description": "of the report"},
            "unit": {"enum": ["USD", "EUR"], "description": "currency"},
            "any": True,
        },
        "required": ["year"],
    }
    finds = ToolSpec(name="f", description="Finds.", parameters=parameters)
    text = tools_text(Prompt(messages=(), tools=(finds, LOOK_UP)), form)
    assert '- f(year: integer, unit?: {"enum": ["USD", "EUR"]}, any?: true): Finds.\n' in text
    assert "  year: of the report\n  unit: currency\n- sql_query(" in text
    assert text.endswith(form.render(ToolCall(name="tool", arguments={"argument": "value"})))
    assert "Call one tool per turn" in text
    goes = Prompt(messages=(), tools=(ToolSpec(name="g", description="Goes.", parameters={}),), several_calls=True)
    assert "- g(): Goes." in tools_text(goes, form)
    assert "Call one or several tools per turn" in tools_text(goes, form)
