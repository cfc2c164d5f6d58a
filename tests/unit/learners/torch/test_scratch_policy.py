from __future__ import annotations

import re
from pathlib import Path

import pytest

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry

pytest.importorskip("torch")
pytest.importorskip("transformers")

from finqa_plugins.learners.torch.initial_policy import ModelSpec, PolicySpec, TokenizerSpec, create_policy, read_spec

TINY = Path(__file__).parents[4] / "configs" / "models" / "tiny.toml"
SYSTEM = "You are an analyst <tool_call> of <|im_end|> tables."
TEXTS = [
    text
    for number in range(30)
    for text in (SYSTEM, f"Company: a{number}_foods\nQuestion: What was net_sales in 20{number + 10}?", '{"a": "2024"}')
]


def _spec(**tokenizer: object) -> PolicySpec:
    sizes = ModelSpec(hidden_size=16, layers=1, heads=2, key_value_heads=1, head_dim=8, intermediate_size=16)
    return PolicySpec(model=sizes, tokenizer=TokenizerSpec.model_validate({"vocab_size": 400} | tokenizer))


def test_the_shipped_spec_is_at_most_two_million_parameters(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    spec = read_spec(TINY)
    assert spec is not None
    create_policy(spec, TEXTS, tmp_path, seed=0)
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path))
    assert model.config.model_type == "qwen3"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000


def test_same_texts_and_seed_give_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        create_policy(_spec(), TEXTS, tmp_path / name, seed=seed)
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != (tmp_path / "c" / "model.safetensors").read_bytes()


def test_frequent_lines_and_phrases_are_one_token_but_never_hold_control_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    create_policy(_spec(phrases=('{"a": "',)), TEXTS, tmp_path, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    vocabulary = tokenizer.get_vocab()
    assert {'{"a": "', "You are an analyst ", "assistant\n"} <= set(vocabulary)
    control = re.compile(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>|</?tool_call>|</?tool_response>")
    assert [token for token in vocabulary if control.search(token) and not control.fullmatch(token)] == []
    pieces = tokenizer.tokenize('net_sales "2024" 12024 2024')
    assert [piece for piece in pieces if "2" in piece] == ["2024", "2", "2", "2024"]
    text = "Ünïcödé 中 \U0001f600 <|im_end|> \t\r\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_wrong_specs_say_where(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    for text, expected in (
        ("[model\n", "not valid TOML"),
        ("[model]\nlayers = 0\n[tokenizer]\n", r"model\.layers"),
        ("[model]\nlayer = 2\n[tokenizer]\n", r"model\.layer\b"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=expected):
            read_spec(path)
    path.write_text("architecture = 'llama'\n")
    assert read_spec(path) is None
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spec(tmp_path / "none.toml")


def test_the_plugin_makes_policies_for_sft(tmp_path: Path) -> None:
    made = registry().hook.create_policy(specification=TINY, texts=TEXTS, folder=tmp_path / "made", seed=3)
    assert made.model == str(tmp_path / "made")
    assert (tmp_path / "made" / "model.safetensors").is_file()
    other = tmp_path / "other.toml"
    other.write_text("architecture = 'llama'\n")
    assert registry().hook.create_policy(specification=other, texts=TEXTS, folder=tmp_path / "none", seed=3) is None
