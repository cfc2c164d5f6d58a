"""Divisions of a machine's devices between engine and learner, in the order of preference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from finqa_cli.placement.placement_types import EngineKind, Request


@dataclass(frozen=True, slots=True)
class Layout:
    """A division of the devices.

    Attributes:
        engine: Devices of the engine.
        learner: Devices of the learner, one for each process.
        shared: Engine and learner have the same devices and take turns.
    """

    engine: tuple[int, ...]
    learner: tuple[int, ...]
    shared: bool = False


def find_layouts(
    devices: tuple[int, ...],
    engine: EngineKind | None,
    wishes: Request,
    *,
    learner: bool,
    few: bool,
    alternates: bool,
    turns: bool,
) -> Iterator[Layout]:
    """Yield the divisions that follow the user's decisions, the preferred one first.

    Args:
        devices: Devices of the machine.
        engine: Engine that generates; None: no engine needs a device.
        wishes: The user's decisions.
        learner: Whether a learner needs devices.
        few: One device each is enough for engine and learner, unless the user decided on another number.
        alternates: Engine and learner are never active together, so that sharing all devices costs nothing.
        turns: Engine and learner may take turns on the same devices.
    """
    used = devices
    if few and not _names_counts(wishes):
        used = devices[: 2 if engine is not None and learner else 1]
    if engine is None:
        yield from (Layout(engine=(), learner=chosen) for chosen in _for_learner(used, (), wishes) if chosen)
    elif not learner:
        for size in range(len(used), 0, -1):
            chosen = wishes.engine_devices or used[:size]
            if _suits(len(chosen), engine, wishes):
                yield Layout(engine=chosen, learner=())
            if wishes.engine_devices:
                return
    else:
        apart = () if wishes.sleep else _apart(used, engine, wishes)
        in_turn = _in_turn(devices[:1] if few and used != devices else devices, engine, wishes) if turns else ()
        yield from (*in_turn, *apart) if alternates else (*apart, *in_turn)


def _apart(devices: tuple[int, ...], engine: EngineKind, wishes: Request) -> Iterator[Layout]:
    """Yield divisions with separate devices: half of the devices for the engine, then fewer, then more."""
    half = len(devices) // 2
    for size in (*range(half, 0, -1), *range(half + 1, len(devices))):
        chosen = wishes.engine_devices or devices[:size]
        if not _suits(len(chosen), engine, wishes):
            continue
        for learner in _for_learner(devices, chosen, wishes):
            if learner and not set(learner) & set(chosen):
                yield Layout(engine=chosen, learner=learner)
        if wishes.engine_devices:
            return


def _in_turn(devices: tuple[int, ...], engine: EngineKind, wishes: Request) -> Iterator[Layout]:
    for size in range(len(devices), 0, -1):
        chosen = wishes.engine_devices or wishes.learner_devices or devices[:size]
        learner = wishes.learner_devices or chosen
        agrees = set(learner) == set(chosen) and wishes.learner_processes in (None, len(learner))
        if agrees and _suits(len(chosen), engine, wishes):
            yield Layout(engine=chosen, learner=learner, shared=True)
        if wishes.engine_devices or wishes.learner_devices:
            return


def _for_learner(devices: tuple[int, ...], engine: tuple[int, ...], wishes: Request) -> Iterator[tuple[int, ...]]:
    """Yield the devices of the learner, given those of the engine: the user's choice, or those that are left."""
    if wishes.learner_devices:
        if wishes.learner_processes in (None, len(wishes.learner_devices)):
            yield wishes.learner_devices
        return
    left = tuple(device for device in devices if device not in engine)
    if wishes.learner_processes is None:
        yield left
    elif wishes.learner_processes <= len(left):
        yield left[: wishes.learner_processes]


def _suits(size: int, engine: EngineKind, wishes: Request) -> bool:
    """Whether this number of devices fits the engine and the user's replicas and tensor parallelism."""
    share, replicas = wishes.tensor_parallel_size, wishes.engine_replicas
    if engine.spread == "one":
        if share not in (None, 1):
            return False
        share = 1
    if not engine.replicates and replicas not in (None, 1):
        return False
    if share and replicas:
        return size == share * replicas
    return size % (share or replicas or 1) == 0


def _names_counts(wishes: Request) -> bool:
    """Whether the user decided the devices, or any number of devices above 1."""
    named = (wishes.tensor_parallel_size, wishes.engine_replicas, wishes.learner_processes)
    return any(wish is not None and wish > 1 for wish in named) or bool(wishes.engine_devices or wishes.learner_devices)
