"""Which split a company or a file belongs to."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from finqa_cli.data.dataset import SplitShares

SPLIT_NAMES = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
"""Names of splits as data sets write them -> ours."""

_IN_NAME = re.compile(rf"(?:^|[_.-])({'|'.join(SPLIT_NAMES)})(?=$|[_.-])", re.IGNORECASE)


def split_of(company: str, seed: int, shares: SplitShares) -> str:
    """The split that a company falls into by its name alone, whatever other companies there are."""
    digest = hashlib.sha256(f"{seed}:{company}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < shares.train:
        return "train"
    return "dev" if place < shares.train + shares.dev else "test"


def split_in_name(path: Path) -> str:
    """The split in a file name: `val_finqa.csv` is dev, `test-00000-of-00001.parquet` is test; or nothing."""
    match = _IN_NAME.search(path.stem)
    return SPLIT_NAMES[match[1].lower()] if match else ""
