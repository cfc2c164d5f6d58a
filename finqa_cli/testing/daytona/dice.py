"""Random choices that depend on the seed and on their own kind only."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter

from finqa_cli.testing.daytona.config import Delay


class Dice:
    """One stream of random numbers a kind: the n-th throw of a kind is the same in every run of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}
        self.hits: Counter[str] = Counter()

    def hit(self, kind: str, share: float) -> bool:
        """Whether the next event of this kind is one of the share. Counted in `hits`."""
        if share <= 0.0 or self.stream(kind).random() >= share:
            return False
        self.hits[kind] += 1
        return True

    def seconds(self, kind: str, delay: Delay) -> float:
        """A draw of the lognormal distribution."""
        if delay.median_s == 0.0:
            return 0.0
        return delay.median_s * math.exp(delay.sigma * self.stream(kind).gauss(0.0, 1.0))

    def identifier(self) -> str:
        """A UUID, version 4."""
        return str(uuid.UUID(int=self.stream("identifier").getrandbits(128), version=4))

    def stream(self, kind: str) -> random.Random:
        """The numbers of one kind."""
        if kind not in self._streams:
            self._streams[kind] = random.Random(f"{self._seed}:{kind}")
        return self._streams[kind]
