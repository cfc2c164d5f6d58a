"""The ideal schedule: what a scheduler would reach that costs nothing and never leaves a box idle while work waits.

List scheduling (Graham, 1969) of the very episodes that were played, in virtual time: the same engine with the same
latencies, every tool answers at once, no box takes time to hand on. It knows no lengths in advance, as none can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.sandboxes.latency import LatencyModel, SharedDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How well boxes and engine were used from the first episode's start to the last one's end.

    Attributes:
        seconds: From first to last.
        box_share: Share of the box seconds in which a box held an episode.
        engine_load: Requests that the engine served at once, on average.
    """

    seconds: float
    box_share: float
    engine_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    box: int
    seed: int
    turns: int
    turn: int


def ideal_schedule(model: LatencyModel, episodes: Sequence[tuple[int, int]], boxes: int) -> Schedule:
    """The schedule of episodes, each a seed and a number of turns, in their order on so many boxes."""
    decoder: SharedDecoder[_Turn] = SharedDecoder(model, 0.0)
    waiting: Iterator[tuple[int, int]] = iter(episodes)
    now = held = 0.0
    begun: dict[int, float] = {}

    def start(number: int) -> None:
        if (episode := next(waiting, None)) is not None:
            begun[number] = now
            seed, turns = episode
            decoder.add(_Turn(box=number, seed=seed, turns=turns, turn=0), model.steps(seed, 0), now)

    for number in range(min(boxes, len(episodes))):
        start(number)
    while (due := decoder.due()) is not None:
        for finished in decoder.advance(due):
            now = due
            if finished.turn + 1 < finished.turns:
                following = replace(finished, turn=finished.turn + 1)
                decoder.add(following, model.steps(following.seed, following.turn), now)
            else:
                held += now - begun[finished.box]
                start(finished.box)
    return Schedule(seconds=now, box_share=held / (boxes * now), engine_load=decoder.request_seconds / now)


def lower_bound_s(lengths: Sequence[float], boxes: int) -> float:
    """No schedule of episodes of these lengths on so many boxes is shorter (Graham, 1969)."""
    return max(sum(lengths) / boxes, max(lengths))
