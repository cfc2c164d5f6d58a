"""Models of the Hugging Face hub that are complete in its cache on this machine, so that no process asks the hub.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import json
from pathlib import Path

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_TOKENIZERS = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json")


def cached_model(reference: str) -> Path | None:
    """Return the folder of a hub id in the hub's cache; None if it, its weights or its tokenizer are not there."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(reference, "config.json")
    except HFValidationError:
        return None
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and _has_weights(folder) and _has_any(folder, _TOKENIZERS) else None


def local_model(reference: str) -> str:
    """Return the folder of a hub id that is complete in the hub's cache; any other reference unchanged.

    Components that load a model use this: they read the same files even if the hub has newer ones meanwhile.
    """
    if not reference or Path(reference).exists():
        return reference
    return str(cached_model(reference) or reference)


def _has_weights(folder: Path) -> bool:
    for name in _INDEXES:
        if (folder / name).is_file():
            try:
                files = set(json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return False
            return all((folder / str(file)).is_file() for file in files)
    return _has_any(folder, _WHOLE)


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)
