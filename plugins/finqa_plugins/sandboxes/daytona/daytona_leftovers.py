"""Sandboxes whose start was abandoned: they may appear later, or could not be ended then."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence, Set

from finqa_cli.errors import FinqaError
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud
from finqa_plugins.sandboxes.daytona.daytona_create import SANDBOX_LABEL
from finqa_plugins.sandboxes.daytona.daytona_ledger import Ledger

SEARCH_PAUSES_S = (2.0, 8.0, 30.0, 120.0)
LAST_LOOK_S = 5.0
"""How long `end` looks for a sandbox whose request was never answered."""
AT_ONCE = 50
_PAUSE_S = 0.5


class Leftovers:
    """Looks names of the ledger up and ends what it finds. A name without a sandbox stays in the ledger."""

    def __init__(self, cloud: Cloud, ledger: Ledger, delete_timeout_s: float) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._delete_timeout_s = delete_timeout_s
        self._searches: set[asyncio.Task[None]] = set()

    def search(self, name: str) -> None:
        """Looks for a sandbox in the background, for a few minutes."""
        task = asyncio.create_task(self._search(name))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def end(self, ended: Set[str]) -> Sequence[FinqaError]:
        """Ends the sandboxes of all open names but those of `ended`, for the last time; returns what went wrong."""
        for task in self._searches:
            task.cancel()
        failures: list[FinqaError] = []
        deadline = time.monotonic() + LAST_LOOK_S
        names = self._ledger.open_names - ended
        places = asyncio.Semaphore(AT_ONCE)

        async def look(name: str) -> None:
            async with places:
                try:
                    await self._found_and_ended(name)
                except FinqaError as error:
                    failures.append(error)

        while names and not failures:
            await asyncio.gather(*(look(name) for name in names))
            names &= self._ledger.open_names
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_PAUSE_S)
        return failures

    async def _search(self, name: str) -> None:
        for pause in SEARCH_PAUSES_S:
            await asyncio.sleep(pause)
            with contextlib.suppress(FinqaError):
                if await self._found_and_ended(name):
                    return

    async def _found_and_ended(self, name: str) -> bool:
        remote = await self._cloud.get(name, patience_s=LAST_LOOK_S)
        if remote is None or remote.labels.get(SANDBOX_LABEL) != name:
            return False
        await self._cloud.delete(remote, self._delete_timeout_s)
        await self._ledger.gone([name])
        return True
