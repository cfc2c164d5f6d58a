"""Boxes of this user, from whatever process: list them, and end those that were left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.contracts import SandboxProvider
from finqa_cli.errors import FinqaError, ServiceUnavailableError
from finqa_cli.settings import Settings
from finqa_cli.types import SandboxInfo
from finqa_cli.workflows.reporter import Reporter
from finqa_cli.workflows.wiring import make_provider

RUN_LABEL = "finqa.run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which boxes to end. Conditions add up; ids alone select just those.

    Attributes:
        ids: Provider ids; empty means any.
        run: Value of the run label; empty means any.
        older_than_s: Least age in seconds.
    """

    ids: tuple[str, ...] = ()
    run: str = ""
    older_than_s: float = 0.0

    def labels(self) -> Mapping[str, str]:
        """The labels that the provider filters by."""
        return {RUN_LABEL: self.run} if self.run else {}

    def matches(self, box: SandboxInfo, now: float) -> bool:
        """True when the box is meant; `now` is Unix time in seconds."""
        return (not self.ids or box.id in self.ids) and now - box.created >= self.older_than_s


async def list_boxes(settings: Settings, run: str = "") -> tuple[SandboxInfo, ...]:
    """All boxes of the provider that the settings name, oldest first."""
    provider = make_provider(settings)
    try:
        return _oldest_first(await provider.list(Selection(run=run).labels()))
    finally:
        await provider.close()


async def reap(
    settings: Settings, selection: Selection, *, now: float, dry_run: bool, reporter: Reporter
) -> tuple[SandboxInfo, ...]:
    """Ends the selected boxes and returns them; with `dry_run` they are only returned.

    Raises:
        FinqaError: An id does not exist.
        ServiceUnavailableError: Some boxes could not be ended; the others are gone.
    """
    provider = make_provider(settings)
    try:
        boxes = _oldest_first(await provider.list(selection.labels()))
        if unknown := sorted(set(selection.ids) - {box.id for box in boxes}):
            raise FinqaError(f"There is no sandbox {', '.join(unknown)}.", remedy="finqa sandbox ls")
        chosen = tuple(box for box in boxes if selection.matches(box, now))
        if not dry_run:
            await _end(provider, chosen, settings.pool.max_concurrent_create, reporter)
        return chosen
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
