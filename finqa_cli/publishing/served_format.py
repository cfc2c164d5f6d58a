"""The format of turns that a policy was trained with, in its exports.

An export carries a chat template that renders what the codec of its run rendered, so that a chat server gives the
policy the prompts that it knows, tools included; and the settings of its run, so that `finqa eval EXPORT` asks what
`finqa eval RUN` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.contracts import ChatCodec
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError
from finqa_cli.publishing.training_template import TEMPLATE, write_marks
from finqa_cli.runs.durable_files import storage, write_json, write_text
from finqa_cli.runs.run_folder import SETTINGS
from finqa_cli.settings import Settings, from_public_dict
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.build import make_codec
from finqa_cli.wiring.policies import settings_of

_TOKENIZER_CONFIG = "tokenizer_config.json"


def codec_of(policy: PolicyVersion) -> ChatCodec | None:
    """Return the codec that a policy was trained with; None without a tokenizer on this machine that a codec reads.

    Raises:
        ConfigError, DataError: The settings of its run are damaged or of another version.
    """
    if (folder := _tokenizer_folder(policy)) is None:
        return None
    stored = settings_of(str(policy.adapter or policy.model))
    settings = from_public_dict(stored) if stored is not None else Settings()
    try:
        return make_codec(settings, str(folder))
    except ConfigError:
        return None


def _tokenizer_folder(policy: PolicyVersion) -> Path | None:
    """Return the folder of a policy's tokenizer: that of its model or adapter, or in the cache of the hub."""
    places = [Path(policy.model), *([policy.adapter] if policy.adapter is not None else [])]
    if (folder := next((place for place in places if (place / _TOKENIZER_CONFIG).is_file()), None)) is not None:
        return folder
    if Path(policy.model).exists():
        return None
    try:
        from huggingface_hub import errors, try_to_load_from_cache
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(policy.model, _TOKENIZER_CONFIG)
    except errors.HFValidationError:  # the name is that of a folder that is gone
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def describe_format(policy: PolicyVersion) -> Mapping[str, Any]:
    """Return facts about the format of a policy's turns, for its model card; empty if there are none."""
    codec = codec_of(policy)
    return codec.facts() if codec is not None else {}


def write_format(policy: PolicyVersion, folder: Path, *, marks: bool) -> None:
    """Write the chat template and the settings of a policy's run into its export.

    Args:
        policy: The policy that is exported.
        folder: The export, with the files of the tokenizer.
        marks: Mark the assistant's turns in templates of finqa; see `training_template`.

    Raises:
        StorageError: A file cannot be written.
    """
    codec = codec_of(policy)
    template = codec.chat_template() if codec is not None else None
    if template is not None and (folder / _TOKENIZER_CONFIG).is_file():
        write_text(folder / TEMPLATE, template)
        _drop_template(folder / _TOKENIZER_CONFIG)
    if marks:
        write_marks(folder)
    if (stored := settings_of(str(policy.adapter or policy.model))) is not None:
        write_json(folder / SETTINGS, stored)


def _drop_template(path: Path) -> None:
    """Remove the chat template of the base model from the tokenizer's settings, where some libraries look first."""
    with storage(path):
        facts = parse_json(path.read_text(encoding="utf-8"))
    if facts.pop("chat_template", None) is not None:
        write_json(path, facts)
