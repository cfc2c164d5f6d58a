"""One engine replica in a process of a node: the wrapped engine, and the versions in the folder of the process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from finqa_cli import __version__
from finqa_cli.contracts import EngineContext, EngineLoan, EngineRoute, TokenEngine
from finqa_cli.errors import ConfigError, StorageError, UnreachableEngineError
from finqa_cli.extend import registry
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_ray.folder_files import Bytes, Delivered, Inbox, Part
from finqa_ray.node_folder import NodeFolder, node_context
from finqa_ray.node_probe import digest_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What an engine on a node reports about itself.

    Attributes:
        version: Version of finqa on the node.
        node: Address of the node.
        pid: Process id of the actor.
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
    """A Ray actor with an engine. Every call contains its generation, a number that `begin` sets.

    After a restart the generation is 0, so that a call for an earlier process of the actor has no effect. All calls
    share an event loop.
    """

    def __init__(self, name: str, options: Mapping[str, Any], context: EngineContext) -> None:
        """Starts nothing yet.

        Args:
            name: Name of the wrapped engine.
            options: Options of the engine.
            context: Context from the controller.
        """
        self._name, self._options, self._context = name, options, context
        self._folder: NodeFolder | None = None
        self._generation = 0
        self._engine: TokenEngine | None = None
        self._model = context.model
        self._loaded: list[str] = []
        self._numbers = itertools.count()
        self._loans: dict[int, EngineLoan] = {}

    async def begin(self, generation: int, model: Mapping[str, str]) -> bool:
        """Begins a generation.

        Args:
            generation: Number of the generation.
            model: Digests of the files of the model that the engine starts with; empty if it is not a folder.

        Returns:
            Whether the files must be sent, because this node has other files or none at that path.

        Raises:
            StorageError: The node's disk is full or is not writable.
        """
        self._generation = generation
        if self._engine is not None:
            return False
        await asyncio.to_thread(self._new_folder)
        return bool(model) and await asyncio.to_thread(digest_model, self._context.model) != model

    async def receive(self, generation: int, delivery: int, part: Part, content: Bytes) -> None:
        """Writes a part of a folder into the folder of this process; see `Inbox`.

        Raises:
            StorageError: The part arrived damaged, or cannot be written.
        """
        self._check(generation)
        await asyncio.to_thread(self._inbox.receive, delivery, part, content)

    async def start(self, generation: int, delivered: Delivered | None) -> Started:
        """Makes and starts the engine. An engine that was started before is kept.

        Args:
            generation: As `begin`.
            delivered: The model that was sent; None: the one at the path or hub id of the context.

        Raises:
            FinqaError: As `registry().create` and `Engine.start`.
        """
        self._check(generation)
        if self._engine is None:
            if delivered is not None:
                self._model = str(await asyncio.to_thread(self._inbox.take, delivered, "start"))
            context = node_context(self._context, model=self._model, generation=generation)
            if context.lends:
                context = replace(context, host=ray.util.get_node_ip_address())
            engine = registry().create("engine", self._name, self._options, context)
            if not isinstance(engine, TokenEngine):
                raise ConfigError(f"Engine {self._name!r} takes messages; only token engines can be placed.")
            self._engine = engine
        await self._engine.start()
        while self._loans:  # loans of an earlier generation, which no call will end
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
        """Samples one completion; returns it with the usage of the episode so far."""
        engine = self._current(generation)
        return await engine.generate(request), engine.usage(request.key.partition("#")[0])

    async def probe(self, generation: int, request: GenerateRequest) -> Completion:
        """The request's completion under the current version.

        Engines without probes cache nothing of other versions.
        """
        engine = self._current(generation)
        if engine.probe_tolerance is None:
            return await engine.generate(request)
        return (await engine.probe(request))[0]

    async def load(self, generation: int, policy: PolicyVersion, delivered: Delivered | None) -> None:
        """Loads a version into the engine.

        Args:
            generation: As `begin`.
            policy: The version.
            delivered: Its adapter, or its whole model if it has none; None: the version is the model that the engine
                started with.

        Raises:
            StorageError: The weights were not received completely, or cannot be written.
            EngineError: The version cannot be loaded; the old version keeps serving.
        """
        engine, keep = self._current(generation), self._context.versions + 1
        if policy.model == self._context.model:
            policy = replace(policy, model=self._model)
        if delivered is not None:
            name = f"v{policy.number:05d}"
            folder = await asyncio.to_thread(self._inbox.take, delivered, name)
            self._current(generation)  # a call of an earlier generation must not load it
            if policy.adapter is not None:
                policy = replace(policy, adapter=folder)
            else:
                policy, keep = (
                    replace(policy, model=str(folder)),
                    1,
                )  # an engine needs the files of a model only until it is loaded
        await engine.load(policy)
        if delivered is not None:
            self._loaded = [*(one for one in self._loaded if one != name), name][-keep:]
            await asyncio.to_thread(self._inbox.keep, self._loaded)

    async def lend(self, generation: int) -> tuple[int, EngineRoute | None]:
        """Lends the engine's server with the current version; returns the number of the loan and any route."""
        loan = self._current(generation).lend()
        number = next(self._numbers)
        if loan is None or (route := loan.routes[0]) is None:
            return number, None
        self._loans[number] = loan
        return number, replace(route, node=ray.util.get_node_ip_address())

    async def heard(self) -> None:
        """Reports to the engine that its server answered processes that it is lent to."""
        for loan in self._loans.values():
            loan.heard(0)

    async def end_loan(self, number: int) -> None:
        """Ends a loan, whose version is no longer used."""
        if (loan := self._loans.pop(number, None)) is not None:
            loan.end()

    async def close(self) -> None:
        """Closes the engine, and removes the folder."""
        engine, self._engine, self._generation = self._engine, None, 0
        try:
            if engine is not None:
                await engine.close()
        finally:
            if self._folder is not None:
                await asyncio.to_thread(self._folder.close)

    def _new_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()
        try:
            self._folder = NodeFolder()
        except OSError as error:
            raise StorageError(f"This node has no temporary folder for weights: {error}") from error
        self._inbox = Inbox(self._folder.path)

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise self._restarted(generation)

    def _current(self, generation: int) -> TokenEngine:
        if self._engine is None or generation != self._generation:
            raise self._restarted(generation)
        return self._engine

    def _restarted(self, generation: int) -> UnreachableEngineError:
        return UnreachableEngineError(
            f"Engine replica {self._context.replica} was started again, and this call is for its generation "
            f"{generation}, not {self._generation}."
        )
