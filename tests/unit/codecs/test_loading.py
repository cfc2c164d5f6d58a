"""Tokenizers that are loaded by the name of their class are those that AutoTokenizer loads."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_models import write_gpt2_tokenizer
from transformers import AutoTokenizer

from finqa_cli.errors import ConfigError
from finqa_plugins.codecs.loading import load_tokenizer

TEXT = "Net revenue <|im_end|> of 2019: $ 1,234.5 million\n\ncafé <tool_call>"


@pytest.fixture
def embedded(tmp_path: Path) -> Path:
    spec = find_spec("finqa_plugins.policies")
    assert spec is not None and spec.origin is not None
    shutil.copytree(
        Path(spec.origin).parent, tmp_path / "model", ignore=shutil.ignore_patterns("*.py", "*.safetensors", "*_")
    )
    return tmp_path / "model"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "gpt2"])
@pytest.mark.parametrize(
    "named",
    [
        *("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "Qwen2Tokenizer"),
        *("Qwen2TokenizerFast", "GPT2TokenizerFast", "GPT2Tokenizer", "LlamaTokenizerFast", None),
    ],
)
def test_a_named_class_is_the_one_that_would_be_chosen(embedded: Path, family: str, named: str | None) -> None:
    change(embedded / "config.json", model_type=family)
    change(embedded / "tokenizer_config.json", tokenizer_class=named)
    expected = AutoTokenizer.from_pretrained(str(embedded))
    found = load_tokenizer(str(embedded))
    assert type(found) is type(expected)
    assert found.encode(TEXT) == expected.encode(TEXT)
    assert found.get_vocab() == expected.get_vocab() and found.special_tokens_map == expected.special_tokens_map
    assert found.chat_template == expected.chat_template


def test_a_tokenizer_of_gpt2_is_the_one_that_would_be_chosen(tmp_path: Path) -> None:
    write_gpt2_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    expected = AutoTokenizer.from_pretrained(str(tmp_path))
    found = load_tokenizer(str(tmp_path), template=False)
    assert type(found) is type(expected) and found.encode(TEXT) == expected.encode(TEXT)


def test_a_folder_is_read_again_when_it_changed(embedded: Path) -> None:
    first = load_tokenizer(str(embedded))
    assert load_tokenizer(str(embedded)) is first
    (embedded / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_tokenizer(str(embedded)).chat_template == "{{ messages[0].content }}"
    (embedded / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_tokenizer(str(embedded))
    (embedded / "tokenizer.json").rename(embedded / "tokenizer.json.bak")
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load_tokenizer(str(embedded))
