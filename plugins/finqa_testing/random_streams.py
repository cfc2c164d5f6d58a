"""Random faults and delays of the loopback services: one seeded stream of numbers per kind of event."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter

from pydantic import BaseModel, ConfigDict, Field

Share = Field(default=0.0, ge=0.0, le=1.0)


class ConfigSection(BaseModel):
    """A part of a loopback's configuration, which is immutable; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Delay(ConfigSection):
    """A delay in seconds with a lognormal distribution; a median of 0 means no delay."""

    median_s: float = Field(default=0.0, ge=0.0)
    sigma: float = Field(default=0.0, ge=0.0, le=3.0)


class RandomStreams:
    """One stream of random numbers per kind of event: its n-th number is the same in every run with the same seed.

    Attributes:
        hits: Number of injected faults by kind.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}
        self.hits: Counter[str] = Counter()

    def hit(self, kind: str, share: float) -> bool:
        """Returns whether a fault of this kind occurs, with the given probability, and counts it in `hits`."""
        if share <= 0.0 or self.stream(kind).random() >= share:
            return False
        self.hits[kind] += 1
        return True

    def seconds(self, kind: str, delay: Delay) -> float:
        """Returns a random delay in seconds."""
        if delay.median_s == 0.0:
            return 0.0
        return delay.median_s * math.exp(delay.sigma * self.stream(kind).gauss(0.0, 1.0))

    def identifier(self) -> str:
        """Returns a new UUID, version 4."""
        return str(uuid.UUID(int=self.stream("identifier").getrandbits(128), version=4))

    def stream(self, kind: str) -> random.Random:
        """Returns the random number generator of one kind of event."""
        if kind not in self._streams:
            self._streams[kind] = random.Random(f"{self._seed}:{kind}")
        return self._streams[kind]
