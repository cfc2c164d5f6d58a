"""The ideal schedule: what a scheduler would reach that costs nothing and never leaves a sandbox idle while work waits.

List scheduling (Graham, 1969) of the very episodes that were played, in virtual time: the same engine with the same
latencies, every tool answers at once, no sandbox takes time to hand on. It knows no lengths in advance, as none can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.scale.engine_latency import LatencyModel, SharedDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How well sandboxes and engine were used from the first episode's start to the last one's end.

    Attributes:
        seconds: From first to last.
        sandbox_share: Share of the sandbox seconds in which a sandbox held an episode.
        engine_load: Requests that the engine served at once, on average.
    """

    seconds: float
    sandbox_share: float
    engine_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    sandbox: int
    seed: int
    turns: int
    turn: int


def ideal_schedule(model: LatencyModel, episodes: Sequence[tuple[int, int]], sandboxes: int) -> Schedule:
    """The schedule of episodes, each a seed and a number of turns, in their order on so many sandboxes."""
    decoder: SharedDecoder[_Turn] = SharedDecoder(model, 0.0)
    waiting: Iterator[tuple[int, int]] = iter(episodes)
    now = held = 0.0
    begun: dict[int, float] = {}

    def start(number: int) -> None:
        if (episode := next(waiting, None)) is not None:
            begun[number] = now
            seed, turns = episode
            decoder.add(_Turn(sandbox=number, seed=seed, turns=turns, turn=0), model.steps(seed, 0), now)

    for number in range(min(sandboxes, len(episodes))):
        start(number)
    while (due := decoder.due()) is not None:
        for finished in decoder.advance(due):
            now = due
            if finished.turn + 1 < finished.turns:
                following = replace(finished, turn=finished.turn + 1)
                decoder.add(following, model.steps(following.seed, following.turn), now)
            else:
                held += now - begun[finished.sandbox]
                start(finished.sandbox)
    return Schedule(seconds=now, sandbox_share=held / (sandboxes * now), engine_load=decoder.request_seconds / now)


def lower_bound_s(lengths: Sequence[float], sandboxes: int) -> float:
    """No schedule of episodes of these lengths on so many sandboxes is shorter (Graham, 1969)."""
    return max(sum(lengths) / sandboxes, max(lengths))
