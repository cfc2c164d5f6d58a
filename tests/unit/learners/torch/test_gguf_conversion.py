"""Converted GGUF files: weights, tokenizer, stop tokens; files that would become another model, and hostile files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.gguf_files import TEMPLATE, TOKENS, write_gguf
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from finqa_cli.errors import ConfigError
from finqa_cli.local_models import gguf_header, read_gguf
from finqa_plugins.learners.torch.gguf_conversion import convert


def converted(file: Path, folder: Path, dtype: str = "float32") -> Path:
    folder.mkdir()
    convert(read_gguf(file), folder, dtype, lambda step, done, total: None)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "tiny.gguf")
    state = load_file(converted(tmp_path / "tiny.gguf", tmp_path / "out") / "model.safetensors")
    assert sum(weight.numel() for weight in state.values()) == sum(weight.size for weight in weights.values())
    for theirs, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
    ):
        assert torch.equal(state[ours], torch.from_numpy(weights[theirs]))


def test_precision_is_as_asked_and_the_folder_loads_without_marks_of_quantization(tmp_path: Path, file: Path) -> None:
    folder = converted(file, tmp_path / "out", "bfloat16")
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and "quantization_config" not in config and "_name_or_path" not in config
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight


def test_text_is_split_as_in_training(tmp_path: Path, file: Path) -> None:
    """SmolLM2 splits digits first, so that the line breaks before a number are one token."""
    tokenizer = AutoTokenizer.from_pretrained(converted(file, tmp_path / "out"))
    assert tokenizer.tokenize("a\n\n12 hello") == ["a", "ĊĊ", "1", "2", "Ġ", "hello"]
    assert tokenizer.decode(tokenizer("a\n\n12 hello").input_ids) == "a\n\n12 hello"
    write_gguf(tmp_path / "other.gguf", keys={"tokenizer.ggml.pre": "gpt-2"})
    other = AutoTokenizer.from_pretrained(converted(tmp_path / "other.gguf", tmp_path / "other"))
    assert other.tokenize("a\n\n12") == ["a", "Ċ", "Ċ", "1", "2"]


def test_template_and_stop_tokens_are_those_of_the_file(tmp_path: Path, file: Path) -> None:
    folder = converted(file, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 512
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], return_dict=False)
    assert ids[0] == TOKENS.index("<|im_start|>") and TOKENS.index("<|im_end|>") in ids
    # the end of a document, which the file names, and the end of a turn, which only the template shows
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    write_gguf(tmp_path / "named.gguf", keys={"tokenizer.ggml.eot_token_id": 2, "tokenizer.chat_template": "x"})
    named = converted(tmp_path / "named.gguf", tmp_path / "named")
    assert json.loads((named / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("splitting", {"keys": {"tokenizer.ggml.pre": "newest-splitting"}}, "newest-splitting"),
    ("a missing weight", {"without": ("blk.1.ffn_up.weight",)}, "describes .* weights"),
    ("layers", {"keys": {"llama.block_count": 1}}, "describes .* weights"),
    ("a thousand million layers", {"keys": {"llama.block_count": 10**9}}, "announces 1000000000 layers"),
    ("a large vocabulary", {"keys": {"llama.vocab_size": 10**8}}, "describes .* weights"),
    ("scaled positions", {"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rotary positions"),
    ("named scaling", {"keys": {"llama.rope.scaling.type": "yarn"}}, "rotary positions"),
    (
        "another name",
        {"without": ("output_norm.weight",), "tensors": {"x": np.ones(64, np.float32)}},
        "output_norm|norm",
    ),
    (
        "infinity",
        {"without": ("output_norm.weight",), "tensors": {"output_norm.weight": np.full(64, np.inf, np.float32)}},
        "not finite",
    ),
    ("heads", {"keys": {"llama.attention.head_count": 0}}, "cannot be read|weights"),
    ("an end token that is not there", {"keys": {"tokenizer.ggml.eos_token_id": 10**6}}, "cannot be read|eos_token_id"),
    ("an unknown tokenizer", {"keys": {"tokenizer.ggml.model": "letters"}}, "its tokenizer cannot be read"),
    ("an unknown architecture", {"keys": {"general.architecture": "novel"}}, "novel"),
]


@pytest.mark.parametrize(("what", "changes", "reason"), WRONG, ids=[row[0] for row in WRONG])
def test_files_that_would_become_another_model_are_refused(
    what: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "wrong.gguf", **changes)
    with pytest.raises(ConfigError, match=reason) as caught:
        converted(tmp_path / "wrong.gguf", tmp_path / "out")
    assert caught.value.remedy == "finqa model get HUB_ID, with the model that the file was made from"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"split.count": 3}, "one of several parts"),
        ({"general.type": "adapter"}, "its type is 'adapter'"),
        ({"general.type": "mmproj"}, "mmproj"),
    ],
)
def test_files_that_are_no_whole_model_are_refused(keys: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "part.gguf", keys=keys)
    with pytest.raises(ConfigError, match=reason):
        read_gguf(tmp_path / "part.gguf")


def test_every_storage_type_has_the_size_that_llama_cpp_gives_it() -> None:
    for number, (name, block, size) in gguf_header.TENSOR_TYPES.items():
        kind = GGMLQuantizationType(number)
        assert (kind.name, GGML_QUANT_SIZES[kind]) == (name, (block, size))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("whole") / "tiny.gguf"
    write_gguf(file)
    return file.read_bytes()


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_headers_end_in_an_error_of_ours(data: st.DataObject, whole: bytes, tmp_path: Path) -> None:
    spoiled = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, 9_000), max_size=4)):
        spoiled[place : place + 8] = data.draw(st.sampled_from([b"\xff" * 8, struct.pack("<Q", 2**40), bytes(8), b"a"]))
    file = tmp_path / "spoiled.gguf"
    file.write_bytes(bytes(spoiled[: data.draw(st.integers(0, len(whole)))]))
    try:
        assert read_gguf(file).parameters > 0
    except ConfigError as error:
        assert error.remedy
