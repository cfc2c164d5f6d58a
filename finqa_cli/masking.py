"""Secrets: how they are recognized by their name, and masked in files, logs and on screens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "**********"
_SECRET = re.compile(r"(^|[_-])(api[_-]?key|secret|password|passphrase|token|credentials?|authorization)$", re.I)


def is_secret(name: str) -> bool:
    """Return True for names that carry a secret by convention, such as `api_key` or `HF_TOKEN`; `token_ids` is none."""
    return bool(_SECRET.search(name))


def masked(value: Any, name: str = "") -> Any:
    """Return a copy of nested mappings and lists in which every secret is replaced by a mask."""
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    return MASK if value and is_secret(name) else value
