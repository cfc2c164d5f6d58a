"""Tokenizers of models without tool templates, and the `plain` codec over them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fixtures.codec_contexts import codec_context
from fixtures.plain_models import write_gpt2_tokenizer, write_llama_tokenizer

from finqa_cli.extend import registry

ENDS = {"gpt2": "<|endoftext|>", "llama": "</s>", "legacy llama": "</s>"}
"""The end token of each family."""
_FOLDERS = TemporaryDirectory(prefix="finqa-plain-")


@cache
def folder_of(family: str) -> Path:
    """A folder with the family's tokenizer; do not change it."""
    folder = Path(_FOLDERS.name) / family
    if family == "gpt2":
        return write_gpt2_tokenizer(folder)
    return write_llama_tokenizer(folder, legacy=family == "legacy llama")


def without_template(folder: Path, copy: Path) -> Path:
    """A copy of a tokenizer's folder without its chat template."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = json.loads((copy / "tokenizer_config.json").read_text(encoding="utf-8"))
    del config["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


@cache
def codec_of(family: str, call_format: str = "auto") -> Any:
    """The codec over the family's tokenizer."""
    return registry().create("codec", "plain", {"call_format": call_format}, codec_context(str(folder_of(family))))


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer as transformers loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
