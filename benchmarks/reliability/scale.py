"""How much of everything is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of a run of the benchmark.

    Attributes:
        quick: For tests: small numbers, and other benchmarks with their own `--quick`.
        seed: First seed.
        seeds: Seeds of chaos.
        at_once: Trainings beside each other.
        kills: Trainings that are killed (R1).
        checkpoint_kills: Writes of checkpoints that are killed (R3).
        sampling_kills: Runs of `finqa sample` that are killed (R10).
        stops: Signals at random moments of commands (R27).
    """

    quick: bool
    seed: int
    seeds: int
    at_once: int = 1
    kills: int = 20
    checkpoint_kills: int = 200
    sampling_kills: int = 20
    stops: int = 100


def full(seed: int, seeds: int, at_once: int) -> Scale:
    """What the figures are reported of."""
    return Scale(quick=False, seed=seed, seeds=seeds, at_once=at_once)


def quick(seed: int, seeds: int, at_once: int) -> Scale:
    """What shows that everything runs."""
    return Scale(
        quick=True,
        seed=seed,
        seeds=min(seeds, 2),
        at_once=at_once,
        kills=1,
        checkpoint_kills=10,
        sampling_kills=2,
        stops=3,
    )
