"""Boxes of this user, from whatever process: list them, and end those that were left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.contracts import SandboxProvider
from finqa_cli.errors import FinqaError, ServiceUnavailableError
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import SandboxInfo
from finqa_cli.wiring.build import make_provider
from finqa_cli.wiring.sandbox_owners import RUN_LABEL, owner_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which boxes to end. Conditions add up; without any, those whose owner was a process of this machine and is gone.

    Attributes:
        ids: Provider ids; empty means any.
        run: Value of the run label; empty means any.
        older_than_s: Least age in seconds; None means any.
        everything: Any box, also one in use.
    """

    ids: tuple[str, ...] = ()
    run: str = ""
    older_than_s: float | None = None
    everything: bool = False

    def labels(self) -> Mapping[str, str]:
        """The labels that the provider filters by."""
        return {RUN_LABEL: self.run} if self.run else {}

    def matches(self, box: SandboxInfo, now: float) -> bool:
        """True when the box is meant; `now` is Unix time in seconds."""
        if not (self.ids or self.run or self.everything or self.older_than_s is not None):
            return owner_state(box.labels) == "gone"
        old_enough = self.older_than_s is None or now - box.created >= self.older_than_s
        return old_enough and (not self.ids or box.id in self.ids)


async def list_boxes(settings: Settings, run: str = "") -> tuple[SandboxInfo, ...]:
    """All boxes of the provider that the settings name, oldest first."""
    provider = make_provider(settings)
    try:
        return _oldest_first(await provider.list(Selection(run=run).labels()))
    finally:
        await provider.close()


async def select(settings: Settings, selection: Selection, *, now: float) -> tuple[SandboxInfo, ...]:
    """The boxes that a selection means, oldest first.

    Raises:
        FinqaError: An id does not exist.
    """
    boxes = await list_boxes(settings, selection.run)
    if unknown := sorted(set(selection.ids) - {box.id for box in boxes}):
        raise FinqaError(f"There is no sandbox {', '.join(unknown)}.", remedy="finqa sandbox ls")
    return tuple(box for box in boxes if selection.matches(box, now))


async def reap(settings: Settings, boxes: Sequence[SandboxInfo], *, reporter: Reporter) -> None:
    """Ends the boxes and waits until each is gone.

    Raises:
        ServiceUnavailableError: Some could not be ended; the others are gone.
    """
    provider = make_provider(settings)
    try:
        await _end(provider, boxes, settings.pool.max_concurrent_create, reporter)
    finally:
        await provider.close()


async def _end(provider: SandboxProvider, boxes: Sequence[SandboxInfo], at_once: int, reporter: Reporter) -> None:
    gate = asyncio.Semaphore(at_once)
    ended = 0

    async def end(box: SandboxInfo) -> None:
        nonlocal ended
        async with gate:
            await provider.reap(box.id)
        ended += 1
        reporter.advance("reap", ended)

    reporter.start("reap", len(boxes))
    results = await asyncio.gather(*(end(box) for box in boxes), return_exceptions=True)
    reporter.finish("reap")
    failed = [(box.id, result) for box, result in zip(boxes, results, strict=True) if result is not None]
    if failed:
        raise ServiceUnavailableError(
            f"{len(failed)} of {len(boxes)} sandboxes could not be ended; the first is {failed[0][0]}: {failed[0][1]}",
            remedy="finqa sandbox ls",
        )


def _oldest_first(boxes: Sequence[SandboxInfo]) -> tuple[SandboxInfo, ...]:
    return tuple(sorted(boxes, key=lambda box: (box.created, box.id)))
