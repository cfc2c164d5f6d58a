"""One engine replica in a process of a node: the wrapped engine, and the versions below the node's own folder."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from finqa_cli import __version__
from finqa_cli.contracts import EngineContext, EngineLoan, EngineRoute, TokenEngine
from finqa_cli.errors import ConfigError, UnreachableEngineError
from finqa_cli.extend import registry
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_plugins.ray_cluster.folder_files import FolderFiles, write_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What an engine on a node says of itself.

    Attributes:
        version: Version of finqa on the node.
        node: Address of the node.
        pid: Process of the actor.
        max_context: As `TokenEngine.max_context`.
        lockstep: As `Engine.lockstep`.
        adapter_dtype: As `TokenEngine.adapter_dtype`.
    """

    version: str
    node: str
    pid: int
    max_context: int
    lockstep: bool
    adapter_dtype: str


class EngineActor:
    """A Ray actor. Every call names the generation that it is for, which `start` sets.

    After a restart the actor has none, so that a call for an earlier process of it changes nothing. All calls share an
    event loop.
    """

    def __init__(self, name: str, options: Mapping[str, Any], context: EngineContext, run: str) -> None:
        """Starts nothing yet.

        Args:
            name: The wrapped engine.
            options: Its options.
            context: What the controller tells it.
            run: Name of the folder of its versions, below the node's temporary folder.
        """
        self._name, self._options, self._context = name, options, context
        self._folder = Path(tempfile.gettempdir()) / run / str(context.replica)
        self._generation = 0
        self._engine: TokenEngine | None = None
        self._numbers = itertools.count()
        self._loans: dict[int, EngineLoan] = {}

    async def start(self, generation: int) -> Started:
        """Makes and starts the engine, for a generation. An engine that was started before is kept.

        Raises:
            FinqaError: As `registry().create` and `Engine.start`.
        """
        self._generation = generation
        if self._engine is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            context = replace(self._context, home=node_home(), replica=0, replicas=1)
            if context.lends:
                context = replace(context, host=ray.util.get_node_ip_address())
            engine = registry().create("engine", self._name, self._options, context)
            if not isinstance(engine, TokenEngine):
                raise ConfigError(f"Engine {self._name!r} takes messages; only token engines can be placed.")
            self._engine = engine
        await self._engine.start()
        while self._loans:  # of an earlier generation, which no call ends
            self._loans.popitem()[1].end()
        return Started(
            version=__version__,
            node=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            max_context=self._engine.max_context,
            lockstep=self._engine.lockstep,
            adapter_dtype=self._engine.adapter_dtype,
        )

    async def generate(self, generation: int, request: GenerateRequest) -> tuple[Completion, Mapping[str, Any]]:
        """Samples one completion; with what the episode used so far."""
        engine = self._current(generation)
        return await engine.generate(request), engine.usage(request.key.partition("#")[0])

    async def probe(self, generation: int, request: GenerateRequest) -> Completion:
        """The request's completion under the current version. Engines without probes keep no caches of others."""
        engine = self._current(generation)
        if engine.probe_tolerance is None:
            return await engine.generate(request)
        return (await engine.probe(request))[0]

    async def load(self, generation: int, policy: PolicyVersion, adapter: FolderFiles | None) -> Path | None:
        """Writes the adapter of a version into a folder of this node, checks it, and has the engine load it.

        Returns:
            The folder; None for a version without an adapter.

        Raises:
            StorageError: It arrived damaged, or cannot be written.
            EngineError: It cannot be loaded; the old version keeps serving.
        """
        engine = self._current(generation)
        folder = None
        if adapter is not None:
            folder = self._folder / f"v{policy.number:05d}-{adapter.digest[:16]}"
            await asyncio.to_thread(write_folder, adapter, folder)
            self._current(generation)  # a late process must not load it
        await engine.load(replace(policy, adapter=folder))
        for old in sorted(self._folder.glob("v*"))[: -self._context.versions - 1]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    async def lend(self, generation: int) -> tuple[int, EngineRoute | None]:
        """Has the engine's server keep the current version; returns the number of the loan, and its route."""
        loan = self._current(generation).lend()
        number = next(self._numbers)
        if loan is None or (route := loan.routes[0]) is None:
            return number, None
        self._loans[number] = loan
        return number, replace(route, node=ray.util.get_node_ip_address())

    async def heard(self) -> None:
        """The server answered processes that it is lent to."""
        for loan in self._loans.values():
            loan.heard(0)

    async def end_loan(self, number: int) -> None:
        """The version of a loan is not used any more."""
        if (loan := self._loans.pop(number, None)) is not None:
            loan.end()

    async def close(self) -> None:
        """Ends the engine, and removes its folder."""
        engine, self._engine, self._generation = self._engine, None, 0
        try:
            if engine is not None:
                await engine.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _current(self, generation: int) -> TokenEngine:
        if self._engine is None or generation != self._generation:
            raise UnreachableEngineError(
                f"Engine replica {self._context.replica} was started again, and this call is for its generation "
                f"{generation}, not {self._generation}."
            )
        return self._engine


def node_home() -> Path:
    """Return FINQA_HOME of the node."""
    return Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser()
