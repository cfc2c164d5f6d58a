"""Which split a company belongs to."""

from __future__ import annotations

import hashlib

from finqa_cli.data.dataset import SplitShares


def split_of(company: str, seed: int, shares: SplitShares) -> str:
    """The split that a company falls into by its name alone, whatever other companies there are."""
    digest = hashlib.sha256(f"{seed}:{company}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < shares.train:
        return "train"
    return "dev" if place < shares.train + shares.dev else "test"
