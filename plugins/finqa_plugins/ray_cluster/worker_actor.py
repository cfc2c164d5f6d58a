"""The process of a rollout worker on a node: one object, whose methods are called by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from finqa_cli import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Where a worker runs, and its version of finqa."""

    version: str
    node: str


class WorkerActor:
    """A Ray actor. All calls share an event loop."""

    def __init__(self, make: Callable[[], object]) -> None:
        """`make` makes the object once the first call comes, in the event loop."""
        self._make = make
        self._made: object | None = None

    async def place(self) -> WorkerPlace:
        """Return where this process runs."""
        return WorkerPlace(version=__version__, node=ray.util.get_node_ip_address())

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        if self._made is None:
            self._made = self._make()
        return await getattr(self._made, method)(*arguments)
