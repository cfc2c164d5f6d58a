"""Loads the tokenizer of a model folder or hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError

MODEL_REMEDY = (
    "Give --model a folder or hub id of a chat model with tokenizer.json and a chat template, or --set codec.name=plain"
)
_TOKENIZER_REMEDY = "--model FOLDER_OR_HUB_ID of a model with its tokenizer (tokenizer.json)"
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model")
_CONFIG = "tokenizer_config.json"


def load_tokenizer(model: str, *, template: bool = True) -> Any:
    """The tokenizer of a folder or hub id.

    Args:
        model: Folder or hub id.
        template: It must have a chat template.

    Raises:
        ConfigError: The folder or the hub has none, or it lacks the template.
    """
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir():
        missing = [] if any((folder / name).is_file() for name in _VOCABULARIES) else [_VOCABULARIES[0]]
        missing += [] if (folder / _CONFIG).is_file() else [_CONFIG]
        if missing:
            raise ConfigError(f"The model folder {model} has no {' and no '.join(missing)}.", remedy=_TOKENIZER_REMEDY)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError or plain Exception
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"The tokenizer of {model!r} cannot be loaded: {reason}", remedy=_TOKENIZER_REMEDY) from error
    if template and not tokenizer.chat_template:
        raise ConfigError(f"The tokenizer of {model!r} has no chat template.", remedy=MODEL_REMEDY)
    return tokenizer
