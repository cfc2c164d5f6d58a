"""Sandboxes of this user, from any process: list them, and end those that were left behind."""

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
from finqa_cli.wiring.sandbox_owners import RUN_LABEL, list_command, owner_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of sandboxes to end.

    A sandbox must meet all conditions. Without conditions, those are selected whose owner was a process of this machine
    that no longer exists.

    Attributes:
        ids: Provider ids; empty means any.
        run: Value of the run label; empty means any.
        older_than_s: Smallest age in seconds; None means any.
        everything: Select any sandbox, also one in use.
    """

    ids: tuple[str, ...] = ()
    run: str = ""
    older_than_s: float | None = None
    everything: bool = False

    def labels(self) -> Mapping[str, str]:
        """Return the labels that the provider filters by."""
        return {RUN_LABEL: self.run} if self.run else {}

    def matches(self, sandbox: SandboxInfo, now: float) -> bool:
        """Return True if a sandbox is selected that passed the filter by `labels`; `now` is Unix time in seconds."""
        if not (self.ids or self.run or self.everything or self.older_than_s is not None):
            return owner_state(sandbox.labels) == "gone"
        old_enough = self.older_than_s is None or now - sandbox.created >= self.older_than_s
        return old_enough and (not self.ids or sandbox.id in self.ids)


async def list_sandboxes(settings: Settings, run: str = "") -> tuple[SandboxInfo, ...]:
    """Return the sandboxes of the provider that the settings name, oldest first; with `run`, only those of a run."""
    provider = make_provider(settings)
    try:
        return _oldest_first(await provider.list(Selection(run=run).labels()))
    finally:
        await provider.close()


async def select(settings: Settings, selection: Selection, *, now: float) -> tuple[SandboxInfo, ...]:
    """Return the selected sandboxes, oldest first.

    Raises:
        FinqaError: An id does not exist.
    """
    sandboxes = await list_sandboxes(settings, selection.run)
    if unknown := sorted(set(selection.ids) - {sandbox.id for sandbox in sandboxes}):
        raise FinqaError(f"There is no sandbox {', '.join(unknown)}.", remedy=list_command(settings.sandbox.name))
    return tuple(sandbox for sandbox in sandboxes if selection.matches(sandbox, now))


async def reap(settings: Settings, sandboxes: Sequence[SandboxInfo], *, reporter: Reporter) -> None:
    """End the sandboxes and wait until each is removed.

    Raises:
        ServiceUnavailableError: Some could not be ended; the others are removed.
    """
    provider = make_provider(settings)
    try:
        await _end(provider, sandboxes, settings, reporter)
    finally:
        await provider.close()


async def _end(
    provider: SandboxProvider, sandboxes: Sequence[SandboxInfo], settings: Settings, reporter: Reporter
) -> None:
    gate = asyncio.Semaphore(settings.pool.max_concurrent_create)
    ended = 0

    async def end(sandbox: SandboxInfo) -> None:
        nonlocal ended
        async with gate:
            await provider.reap(sandbox.id)
        ended += 1
        reporter.advance("reap", ended)

    reporter.start("reap", len(sandboxes))
    results = await asyncio.gather(*(end(sandbox) for sandbox in sandboxes), return_exceptions=True)
    reporter.finish("reap")
    failed = [(sandbox.id, result) for sandbox, result in zip(sandboxes, results, strict=True) if result is not None]
    if failed:
        raise ServiceUnavailableError(
            f"{len(failed)} of {len(sandboxes)} sandboxes could not be removed; the first is {failed[0][0]}: "
            f"{failed[0][1]}",
            remedy=list_command(settings.sandbox.name),
        )


def _oldest_first(sandboxes: Sequence[SandboxInfo]) -> tuple[SandboxInfo, ...]:
    return tuple(sorted(sandboxes, key=lambda sandbox: (sandbox.created, sandbox.id)))
