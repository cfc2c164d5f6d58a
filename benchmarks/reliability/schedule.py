"""Which faults happen to a training and when, drawn from a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Place = Literal["local", "daytona"]
Kind = Literal[
    "kill trainer",
    "stop trainer",
    "freeze trainer",
    "full disk",
    "clock step",
    "kill server",
    "freeze server",
    "cut sockets",
    "slow sockets",
    "silent sockets",
    "kill sandboxes",
    "freeze sandboxes",
    "kill service",
    "freeze service",
    "storm",
    "expired addresses",
]

OF_TRAINERS: tuple[Kind, ...] = ("kill trainer", "stop trainer", "freeze trainer", "full disk", "clock step")
KINDS: dict[Place, tuple[Kind, ...]] = {
    "local": (*OF_TRAINERS, "kill server", "kill server", "freeze server", "freeze server", "cut sockets"),
    "daytona": (
        *OF_TRAINERS,
        "kill server",
        "freeze server",
        "cut sockets",
        "slow sockets",
        "silent sockets",
        "kill sandboxes",
        "freeze sandboxes",
        "kill service",
        "freeze service",
        "storm",
        "expired addresses",
    ),
}
"""Faults that a place can have; a kind that is named twice is drawn twice as often."""

FEWEST, MOST = 3, 5
EARLY = 0.25
STARTUP_S = 6.0
SHORT_S, LONG_S = (0.5, 5.0), (30.0, 40.0)
LONG = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault.

    Attributes:
        at: Share of the undisturbed run's records that are written when it happens; 0: while the trainer starts.
        delay_s: Seconds after that.
        lasts_s: Seconds until it ends, of faults that end.
        pick: 0 to 1: which of several targets, which signal, or how large.
    """

    at: float
    delay_s: float
    kind: Kind
    lasts_s: float
    pick: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.2f} + {self.delay_s:.2f} s (for {self.lasts_s:.1f} s, pick {self.pick:.3f})"


def place_of(seed: int) -> Place:
    """Even seeds are of local servers, odd ones of a Daytona on loopback."""
    return "daytona" if seed % 2 else "local"


def draw(seed: int, place: Place, *, kinds: tuple[Kind, ...] = (), number: int | None = None) -> list[Strike]:
    """Returns the faults of a seed in the order in which they happen.

    Args:
        seed: Seed of the draws.
        place: Where the sandboxes are.
        kinds: Kinds to draw from; all of the place when empty.
        number: How many; a draw of its own when None.
    """
    rng = random.Random(f"chaos {place} {seed}")
    count = rng.randint(FEWEST, MOST) if number is None else number
    return sorted((_strike(rng, kinds or KINDS[place]) for _ in range(count)), key=lambda strike: strike.at)


def _strike(rng: random.Random, kinds: tuple[Kind, ...]) -> Strike:
    early = rng.random() < EARLY
    return Strike(
        at=0.0 if early else round(rng.uniform(0.01, 0.97), 3),
        delay_s=round(rng.uniform(0.3, STARTUP_S) if early else rng.uniform(0.0, 1.0), 3),
        kind=rng.choice(kinds),
        lasts_s=round(rng.uniform(*(LONG_S if rng.random() < LONG else SHORT_S)), 2),
        pick=round(rng.random(), 4),
    )
