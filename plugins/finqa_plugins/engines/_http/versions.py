"""Policy versions on a server: each is an adapter under its own name, unloaded once no request uses it."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.errors import EngineError
from finqa_cli.types import PolicyVersion
from finqa_plugins.engines._http.adapter_files import Shapes, check_adapter, model_shapes
from finqa_plugins.engines._http.refusals import UnknownModelError
from finqa_plugins.engines._http.token_server import TokenServer

log = structlog.get_logger(__name__)

GOODBYE_S = 5.0
"""Seconds to wait for adapters to be unloaded at the end; a dead server would never answer."""


@dataclass(slots=True, kw_only=True, eq=False)
class Version:
    """One version as the server knows it.

    Attributes:
        number: Number of the policy version.
        name: Name of the model or adapter on the server.
        adapter: Folder of the adapter; None for the base model, and once it is unloaded.
        changes: Whether the adapter differs from the base model.
        users: Requests in progress.
    """

    number: int
    name: str
    adapter: Path | None = None
    changes: bool = False
    users: int = 0


class Versions:
    """The version that later requests get, and the versions still in use."""

    def __init__(
        self, server: TokenServer, *, base: str, model: str, rank: int, shapes: Shapes, answer: tuple[Any, ...]
    ) -> None:
        self.current = Version(number=0, name=base)
        self._server = server
        self._base = base
        self._model = model
        self._rank = rank
        self._shapes = shapes
        self._answer = answer
        self._names = (f"finqa-{uuid.uuid4().hex[:12]}-{count}" for count in itertools.count())
        self._unload_tasks: set[asyncio.Task[None]] = set()
        self._ended = False

    @classmethod
    async def begin(cls, server: TokenServer, *, base: str, model: str, rank: int) -> Versions:
        """Serves the base model at first.

        Args:
            server: The server.
            base: Name of the base model on the server.
            model: The run's name of the base model (folder or hub id).
            rank: Largest rank of an adapter.

        Raises:
            EngineError: The server does not answer a request for the base model.
        """
        shapes = await asyncio.to_thread(model_shapes, model)
        return cls(server, base=base, model=model, rank=rank, shapes=shapes, answer=await server.answer(base))

    async def make(self, policy: PolicyVersion) -> Version:
        """Loads a version and proves that it is served. If this fails, the current version is unchanged.

        Raises:
            EngineError: The adapter is damaged, of another rank or base, or the server refuses or ignores it.
        """
        if not _same_model(policy.model, self._model):
            raise EngineError(f"The server serves {self._model} and adapters for it, not the model {policy.model}.")
        if policy.adapter is None:
            return Version(number=policy.number, name=self._base)
        folder = policy.adapter.resolve()
        changes = await asyncio.to_thread(check_adapter, folder, self._shapes, max_rank=self._rank)
        version = Version(number=policy.number, name=next(self._names), adapter=folder, changes=changes)
        try:
            await self.give(version)
        except BaseException:
            self._drop(version)
            raise
        return version

    async def give(self, version: Version) -> None:
        """Loads a version's adapter, also after the server lost it, and proves that it is served.

        Raises:
            EngineError: The server refuses or ignores it, or does not answer.
        """
        if version.adapter is None:
            return
        await self._server.load_adapter(version.name, version.adapter)
        if not version.changes:
            return
        try:
            served = await self._server.answer(version.name)
        except UnknownModelError as error:
            raise EngineError(f"The server does not serve the adapter that it loaded: {error.message}") from error
        if served == self._answer:
            raise EngineError(
                f"The server ignores the adapter {version.adapter}: its results are those of the base model."
            )

    def switch(self, version: Version) -> None:
        """Makes `version` the one that later requests get."""
        old, self.current = self.current, version
        self._drop(old)

    @contextmanager
    def used(self, version: Version) -> Iterator[None]:
        """Keeps a version loaded while the context is open."""
        version.users += 1
        try:
            yield
        finally:
            version.users -= 1
            if version is not self.current and not self._ended:
                self._drop(version)

    async def end(self) -> None:
        """Unloads the current adapter, if the server still answers within `GOODBYE_S`."""
        self.current.users = 0
        self._drop(self.current)
        self._ended = True
        if self._unload_tasks:
            _, late = await asyncio.wait(self._unload_tasks, timeout=GOODBYE_S)
            for task in late:
                task.cancel()

    def _drop(self, version: Version) -> None:
        """Unloads a version that no request uses, in a background task."""
        if version.adapter is None or version.users:
            return
        version.adapter = None
        task = asyncio.create_task(self._unload(version.name))
        self._unload_tasks.add(task)
        task.add_done_callback(self._unload_tasks.discard)

    async def _unload(self, name: str) -> None:
        try:
            await self._server.unload_adapter(name)
        except EngineError as error:
            # Log: A vLLM server did not unload an old adapter, whose memory it keeps.
            log.warning("an adapter could not be unloaded", adapter=name, reason=error.message)


def _same_model(one: str, other: str) -> bool:
    return one == other or (Path(one).is_dir() and Path(one).resolve() == Path(other).resolve())
