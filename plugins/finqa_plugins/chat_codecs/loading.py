"""Loads the tokenizer of a model folder or hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError

MODEL_REMEDY = "Give --model a folder or hub id of a chat model with tokenizer.json and a chat template."


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a folder or hub id.

    Raises:
        ConfigError: The folder or the hub has none, or it has no chat template.
    """
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir():
        names = ("tokenizer.json", "tokenizer_config.json")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ConfigError(f"The model folder {model} has no {' and no '.join(missing)}.", remedy=MODEL_REMEDY)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError or plain Exception
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"The tokenizer of {model!r} cannot be loaded: {reason}", remedy=MODEL_REMEDY) from error
    if not tokenizer.chat_template:
        raise ConfigError(f"The tokenizer of {model!r} has no chat template.", remedy=MODEL_REMEDY)
    return tokenizer
