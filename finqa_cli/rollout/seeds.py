"""Seeds: every random choice of a run derives from one number in the settings."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def derive(seed: int, *parts: str | int) -> int:
    """A 63-bit seed that depends on all parts and on nothing else, not on the process or its hash seed."""
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def draw(items: Sequence[Item], *, seed: int, position: int, count: int) -> tuple[tuple[Item, ...], int]:
    """The next `count` items of an endless, seeded walk, and the position after them.

    Each epoch visits every item once in its own order. The walk is a function of seed and position alone, so a
    checkpoint needs to keep one integer. No item comes twice in one draw, so a draw near an epoch's end may skip
    items that it already holds.
    """
    if not items:
        return (), position
    chosen: dict[int, None] = {}
    wanted = min(count, len(items))
    while len(chosen) < wanted:
        epoch, offset = divmod(position, len(items))
        chosen.setdefault(_order(len(items), seed, epoch)[offset])
        position += 1
    return tuple(items[index] for index in chosen), position


@functools.lru_cache(maxsize=4)
def _order(length: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(length))
    random.Random(derive(seed, "epoch", epoch)).shuffle(order)
    return tuple(order)
