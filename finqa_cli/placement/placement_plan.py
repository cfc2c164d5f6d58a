"""The placement plan: where engine and learner run, from devices, model, workload and the user's decisions. Pure.

Layouts are tried in the order of preference, and the first that fits is used:

1. Engine and learner on separate devices: half of the devices for each (1 + 1, 2 + 2, 4 + 4), then other divisions.
   Rollouts run ahead of the learner.
2. Engine and learner take turns on the same devices: the engine sleeps during updates, and rollouts wait for them.

Within a layout the engine uses the smallest tensor parallelism at which the weights fill at most half of a device:
several replicas need no communication for each token, and the rest is for keys and values. The token budget and the
context are halved until engine and learner fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from finqa_cli.placement.known_models import known, smaller_models
from finqa_cli.placement.layouts import Layout, find_layouts
from finqa_cli.placement.memory_formulas import (
    CUDA_CONTEXT,
    GIB,
    asleep_items,
    awake_items,
    engine_items,
    kv_on_device,
    learner_items,
)
from finqa_cli.placement.memory_formulas import weights as weight_bytes
from finqa_cli.placement.placement_types import (
    Device,
    DevicePlan,
    EngineKind,
    EnginePlan,
    LearnerPlan,
    Placement,
    Refusal,
    Request,
    Workload,
    count_of,
)
from finqa_cli.types import Architecture

USABLE = 0.95
"""Share of a device's memory that a plan may fill; the rest is for fragmentation."""

ENGINE_SHARE = 0.85
"""Share of a device for an engine that is alone on it; the published script's --gpu-memory-utilization."""

WEIGHTS_SHARE = 1 / 2
"""Share of a device that an engine's weights may fill before the engine is spread over more devices."""

TOKENS = 16384
"""Token budget and context where memory allows them."""

SHORT_TOKENS, LEAST_TOKENS = 4096, 2048
"""Token budgets and contexts are halved down to the first number for all layouts. Only if no layout fits, they are
halved down to the second number."""

TINY = 0.5 * GIB
"""Bytes of weights below which engine and learner use one device each, because more would be a waste."""

ASLEEP = 0.4 * GIB
"""Bytes that a sleeping engine keeps in addition to its CUDA context and graphs."""

WISHES: Mapping[str, str] = {
    "model.tensor_parallel_size": "tensor_parallel_size",
    "generation.engine_replicas": "engine_replicas",
    "model.gpu_memory_utilization": "gpu_memory_utilization",
    "model.sleep": "sleep",
    "train.token_budget": "token_budget",
    "model.max_model_len": "max_model_len",
    "train.learner_processes": "learner_processes",
    "train.max_staleness": "max_staleness",
    "model.engine_devices": "engine_devices",
    "model.learner_devices": "learner_devices",
}
"""Setting -> field of `Request`."""

Changes = dict[str, str | int | float | None]


def plan(
    devices: Sequence[Device], model: Architecture, engine: EngineKind, work: Workload, wishes: Request
) -> Placement | Refusal:
    """Return the placement of engine and learner on this machine.

    Args:
        devices: CUDA devices of the machine; empty: everything runs on the CPU.
        model: The model that is served and trained.
        engine: The engine that generates.
        work: The work that is to run.
        wishes: The user's decisions. A placement follows all of them; if none can, the result is a refusal.
    """
    problem = _Problem(tuple(devices), model, engine, work, wishes)
    found = problem.solve()
    if isinstance(found, Placement):
        return found
    for changes in possible_changes(model, work, wishes):
        other, less, freed = change(changes, model, work, wishes)
        if isinstance(replace(problem, model=other, work=less, wishes=freed).solve(), Placement):
            return Refusal(reason=found.reason, changes=changes)
    return found


class _DoesNotFitError(Exception):
    """A layout cannot be used. `short_gib` is the missing memory in GiB, 0.0 if memory is not the reason."""

    def __init__(self, reason: str, short_gib: float = 0.0) -> None:
        super().__init__(reason)
        self.short_gib = short_gib


@dataclass(frozen=True)
class _Problem:
    """The arguments of `plan`, and the search for the first layout that fits."""

    devices: tuple[Device, ...]
    model: Architecture
    engine: EngineKind
    work: Workload
    wishes: Request

    def solve(self) -> Placement | Refusal:
        """Return the placement of the first layout that fits, or why none does."""
        plays = self.work.plays and self.engine.spread != "none"
        trains = self.work.trains and not self.work.learner_on_cpu
        if not self.devices or not (plays or trains):
            return self._without_devices()
        wishes = self.wishes
        alternates = self.work.alternates or not wishes.max_staleness
        layouts = list(
            find_layouts(
                tuple(device.index for device in self.devices),
                self.engine if plays else None,
                wishes,
                learner=trains,
                few=weight_bytes(self.model) < TINY,
                alternates=self.work.alternates,
                turns=self.engine.sleeps and wishes.sleep is not False and alternates,
            )
        )
        failures: list[_DoesNotFitError] = []
        for least in (SHORT_TOKENS, LEAST_TOKENS):
            for layout in layouts:
                for budget, length in self._lengths(least):
                    try:
                        return self._place(layout, budget, length)
                    except _DoesNotFitError as failure:
                        failures.append(failure)
        if not failures:
            return Refusal(reason=self._no_layout())
        return Refusal(reason=str(min(failures, key=lambda failure: failure.short_gib or math.inf)))

    def _without_devices(self) -> Placement:
        """Return the placement without CUDA devices: all parts run on the CPU or on a server elsewhere."""
        wishes, work = self.wishes, self.work
        engine = EnginePlan(
            replicas=wishes.engine_replicas or 1,
            tensor_parallel_size=wishes.tensor_parallel_size or 1,
            gpu_memory_utilization=wishes.gpu_memory_utilization or ENGINE_SHARE,
            sleep=bool(wishes.sleep),
            max_model_len=wishes.max_model_len or 0,
        )
        return Placement(
            engine=engine if work.plays else None,
            learner=LearnerPlan(processes=wishes.learner_processes or 1) if work.trains else None,
            max_staleness=1 if wishes.max_staleness is None else wishes.max_staleness,
            token_budget=wishes.token_budget or TOKENS,
            per_device=tuple(_device_plan(device, {}) for device in self.devices),
            notes=("no part of this run uses a CUDA device of this machine",) if self.devices else (),
        )

    def _lengths(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of token budget and context, the longest first.

        An episode may be as long as the context, and is a micro-batch of its own if it is longer than the budget. So if
        the user decided neither, both are lowered together.
        """
        work, wishes = self.work, self.wishes
        needed = work.max_gen_tokens + max(work.max_prompt_tokens, 1024)
        most = max(TOKENS, work.max_gen_tokens + max(work.max_prompt_tokens, 4096))
        limit = self.model.context or most
        lengths = [wishes.max_model_len] if wishes.max_model_len else [min(limit, most)]
        budgets = [wishes.token_budget] if wishes.token_budget else [TOKENS]
        while not wishes.max_model_len and lengths[-1] // 2 >= min(max(least, needed), limit):
            lengths.append(lengths[-1] // 2)
        while not wishes.token_budget and budgets[-1] // 2 >= least:
            budgets.append(budgets[-1] // 2)
        steps = range(max(len(lengths), len(budgets)))
        pairs = [(budgets[min(step, len(budgets) - 1)], lengths[min(step, len(lengths) - 1)]) for step in steps]
        yield from dict.fromkeys(pairs)

    def _place(self, layout: Layout, budget: int, length: int) -> Placement:
        """Return the placement of a layout.

        Args:
            layout: Devices of engine and learner.
            budget: Token budget of a micro-batch.
            length: Context in tokens.

        Raises:
            _DoesNotFitError: It does not fit.
        """
        work, wishes = self.work, self.wishes
        totals = {device.index: device.total for device in self.devices}
        if unknown := set(layout.engine + layout.learner) - totals.keys():
            raise _DoesNotFitError(f"There is no device {min(unknown)}: this machine has {len(self.devices)}.")
        learner = self._learner_items(layout, max(budget, length))
        awake = self._awake_items(layout, learner, max(budget, length))
        engine: EnginePlan | None = None
        engine_items: dict[str, float] = {}
        if layout.engine:
            resident = sum(awake.values()) if layout.shared else 0.0
            smallest = min(totals[device] for device in layout.engine)
            engine, engine_items = self._engine_plan(layout, length, total=smallest, resident=resident)
        elif work.plays:
            engine = EnginePlan(replicas=wishes.engine_replicas or 1, max_model_len=wishes.max_model_len or 0)
        per_device = []
        for device in self.devices:
            items = self._items(device, layout, engine_items, learner, awake)
            planned = sum(items.values())
            if planned > USABLE * device.total:
                raise _DoesNotFitError(_too_large(device, items), (planned - USABLE * device.total) / GIB)
            per_device.append(_device_plan(device, items))
        in_turn = layout.shared and not work.alternates
        staleness = wishes.max_staleness if wishes.max_staleness is not None else 0 if in_turn else 1
        peak = round(sum(learner.values()) / GIB, 2)
        processes = len(layout.learner) or wishes.learner_processes or 1
        return Placement(
            engine=engine,
            learner=LearnerPlan(processes=processes, devices=layout.learner, memory_gib=peak) if work.trains else None,
            max_staleness=staleness,
            token_budget=budget,
            per_device=tuple(per_device),
            shared=layout.shared,
            notes=tuple(self._notes(layout, budget, engine)),
        )

    def _learner_items(self, layout: Layout, tokens: int) -> dict[str, float]:
        if not layout.learner:
            return {}
        return learner_items(
            self.model,
            tokens,
            rank=self.work.lora_rank,
            targets=self.work.lora_targets,
            processes=len(layout.learner),
            checkpointing=self.work.checkpointing,
            reference=self.work.reference,
        )

    def _awake_items(self, layout: Layout, learner: dict[str, float], tokens: int) -> dict[str, float]:
        """Bytes of the learner's parts on each of its devices while the engine generates."""
        if not learner:
            return {}
        rank, processes, work = self.work.lora_rank, len(layout.learner), self.work
        if work.learner_sleeps and rank and processes == 1 and not work.alternates:
            return asleep_items(self.model, learner, rank=rank, targets=work.lora_targets)
        return awake_items(self.model, learner, tokens, rank=rank, processes=processes)

    def _engine_plan(
        self, layout: Layout, length: int, *, total: float, resident: float
    ) -> tuple[EnginePlan, dict[str, float]]:
        """Return the engine's plan and the bytes of its parts on a device; keys and values fill the rest of its share.

        Args:
            layout: Devices of the engine.
            length: Context in tokens.
            total: Bytes of the smallest of these devices.
            resident: Bytes that the learner keeps on these devices while the engine generates.

        Raises:
            _DoesNotFitError: Not even one sequence fits.
        """
        count = len(layout.engine)
        spread = self._tensor_parallel(count, total)
        parts = engine_items(
            self.model,
            devices=spread,
            rank=self.work.lora_rank,
            versions=self.work.versions + 1,
            graphs=self.engine.graphs,
        )
        sequence = kv_on_device(self.model, length, spread)
        least = sum(parts.values()) + sequence
        share = self.wishes.gpu_memory_utilization
        if share is None:
            most = USABLE - resident / total
            share = math.floor(100 * min(most, max(ENGINE_SHARE, least / total + 0.01))) / 100
        if least > share * total:
            room = (
                f"the learner on the same device keeps {resident / GIB:.1f} of {total / GIB:.0f} GiB between updates"
                if resident
                else f"{share:.0%} of {total / GIB:.0f} GiB are {share * total / GIB:.1f}"
            )
            raise _DoesNotFitError(
                f"An engine replica on {count_of(spread, 'device')} needs {least / GIB:.1f} GiB on each (weights "
                f"{parts['weights'] / GIB:.1f}, keys and values of one sequence of {length:,} tokens "
                f"{sequence / GIB:.1f}), and {room}.",
                (least - share * total) / GIB,
            )
        cache = share * total - sum(parts.values())
        token = kv_on_device(self.model, 1, spread)
        found = EnginePlan(
            replicas=count // spread,
            tensor_parallel_size=spread,
            devices=layout.engine,
            gpu_memory_utilization=share,
            memory_gib=round(share * total / GIB, 2),
            sleep=layout.shared,
            max_model_len=length,
            kv_tokens=int(cache // token) if token else 0,
        )
        return found, {**parts, "kv_cache": cache}

    def _tensor_parallel(self, count: int, total: float) -> int:
        """Return the number of devices of each replica.

        Raises:
            _DoesNotFitError: The attention heads cannot be divided over the number that the user decided.
        """
        model, wishes = self.model, self.wishes
        if self.engine.spread == "one":
            return 1
        wished = wishes.tensor_parallel_size or (count // wishes.engine_replicas if wishes.engine_replicas else None)
        if wished:
            if model.heads % wished:
                raise _DoesNotFitError(f"{model.heads} attention heads cannot be divided over {wished} devices.")
            return wished
        fitting = [size for size in (1, 2, 4, 8, 16) if count % size == 0 and not model.heads % size]
        small = [size for size in fitting if weight_bytes(model) / size <= WEIGHTS_SHARE * total]
        return min(small) if small else max(fitting)

    def _items(
        self,
        device: Device,
        layout: Layout,
        engine: Mapping[str, float],
        learner: Mapping[str, float],
        awake: Mapping[str, float],
    ) -> dict[str, float]:
        """Return the bytes on one device by part. If engine and learner take turns, those of the larger turn."""
        of_engine = {f"engine {name}": size for name, size in engine.items()} if device.index in layout.engine else {}
        of_learner = (
            {f"learner {name}": size for name, size in learner.items()} if device.index in layout.learner else {}
        )
        if not (layout.shared and of_engine):
            return {**of_engine, **of_learner}
        kept = {f"learner {name}": size for name, size in awake.items()}
        asleep = {"engine asleep": CUDA_CONTEXT + self.engine.graphs + ASLEEP}
        return max({**of_engine, **kept}, {**asleep, **of_learner}, key=lambda items: sum(items.values()))

    def _notes(self, layout: Layout, budget: int, engine: EnginePlan | None) -> Iterator[str]:
        idle = [str(device.index) for device in self.devices if device.index not in layout.engine + layout.learner]
        if idle:
            tiny = weight_bytes(self.model) < TINY
            reason = "the model is so small that more devices do not help" if tiny else "the settings ask for fewer"
            yield f"not used: {', '.join(idle)} ({reason})"
        if layout.shared and not self.work.alternates:
            yield "engine and learner take turns: the engine sleeps during updates, and rollouts wait for them"
        if layout.learner and budget < TOKENS and self.wishes.token_budget is None:
            yield f"token budget lowered from {TOKENS:,} to {budget:,} so that an update fits"
        if engine is not None and 0 < engine.max_model_len < self.model.context:
            yield f"context limited to {engine.max_model_len:,} of the model's {self.model.context:,} tokens"

    def _no_layout(self) -> str:
        asked = [
            f"{path}={getattr(self.wishes, name)}"
            for path, name in WISHES.items()
            if getattr(self.wishes, name) is not None
        ]
        turns = "" if self.engine.sleeps else f" Engine {self.engine.name!r} cannot take turns with a learner."
        return (
            f"{count_of(len(self.devices), 'CUDA device')} cannot be split between engine {self.engine.name!r} and "
            f"learner with {', '.join(asked) or 'these settings'}.{turns}"
        )


def _device_plan(device: Device, items: Mapping[str, float]) -> DevicePlan:
    rounded = {name: round(size / GIB, 2) for name, size in items.items() if size > 0}
    return DevicePlan(
        device=device.index,
        gib_total=round(device.total / GIB, 2),
        gib_planned=round(sum(rounded.values()), 2),
        items=rounded,
    )


def _too_large(device: Device, items: Mapping[str, float]) -> str:
    largest = sorted(items.items(), key=lambda item: -item[1])[:4]
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
    return (
        f"Device {device.index} would hold {sum(items.values()) / GIB:.1f} GiB ({parts}), and {USABLE:.0%} of its "
        f"{device.total / GIB:.0f} GiB are {USABLE * device.total / GIB:.1f}."
    )


def change(
    changes: Changes, model: Architecture, work: Workload, wishes: Request
) -> tuple[Architecture, Workload, Request]:
    """Return model, work and decisions with the changed settings."""
    name, rank = changes.get("model.name"), changes.get("lora.rank")
    freed: dict[str, None] = {WISHES[path]: None for path in changes if path in WISHES}
    return (
        model if name is None else known(str(name)) or model,
        work if rank is None else replace(work, lora_rank=int(rank)),
        replace(wishes, **freed),
    )


def possible_changes(model: Architecture, work: Workload, wishes: Request) -> Iterator[Changes]:
    """Yield changes that may let a plan fit, the smallest first: the user's decisions, the LoRA rank, the model."""
    named: Changes = {path: None for path, name in WISHES.items() if getattr(wishes, name) is not None}
    for path in named:
        yield {path: None}
    if len(named) > 1:
        yield dict(named)
    ranks: list[Changes] = [{}]
    if work.trains and not work.lora_rank:
        yield {"lora.rank": 16}
        yield {"lora.rank": 16, **named}
        ranks.append({"lora.rank": 16})
    for rank in ranks:
        for smaller in smaller_models(model.parameters):
            yield {"model.name": smaller, **rank}
            yield {"model.name": smaller, **rank, **named}
