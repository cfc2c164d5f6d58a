"""One learner process on a node: the wrapped learner, which finds the others as those of `torchrun` do."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from finqa_cli import __version__
from finqa_cli.contracts import Learner, LearnerContext, LearnerEvents, LearnerProcesses
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import PolicyVersion
from finqa_plugins.ray_cluster.folder_files import FolderFiles, read_folder, write_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs.

    Attributes:
        version: Version of finqa there.
        node: Address of the node.
        port: A free port of the node.
        pid: Process of the actor.
    """

    version: str
    node: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the wrapped learner reports about itself; see `Learner`."""

    keeps_reference: bool
    has_value_function: bool
    packs: bool


class RankActor:
    """A Ray actor, whose calls run one after the other in its main thread.

    Rank 0 has the learner; its calls make the other ranks take part, which serve it meanwhile.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        """Joins no other yet.

        Args:
            name: The wrapped learner.
            rank: Rank of this process.
            size: Number of ranks.
        """
        self._name, self._rank, self._size = name, rank, size
        self._learner: Learner | None = None
        self._processes: LearnerProcesses | None = None
        self._events: list[tuple[str, Mapping[str, Any]]] = []

    def place(self) -> Place:
        """Return where this rank runs."""
        node = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((node, 0))
            port = free.getsockname()[1]
        return Place(version=__version__, node=node, port=port, pid=os.getpid())

    def serve(self, leader: Place) -> int:
        """In rank 1 and above: takes part in each call of rank 0, until that closes; the exit status."""
        return self._join(leader).serve()

    def start(self, leader: Place, options: Mapping[str, Any], context: LearnerContext) -> Abilities:
        """In rank 0: joins the others and starts the learner.

        Raises:
            FinqaError: As `registry().create` and `Learner.start`.
        """
        if self._size > 1:
            self._processes = self._join(leader)
        learner: Learner = registry().create("learner", self._name, options, context)
        learner.report_to(
            LearnerEvents(event=lambda name, facts: self._events.append((name, facts)), failed=_report_in_a_call)
        )
        learner.start()
        self._learner = learner
        return Abilities(
            keeps_reference=learner.keeps_reference,
            has_value_function=learner.has_value_function,
            packs=learner.packs(),
        )

    def call(self, method: str, *arguments: Any) -> tuple[Any, list[tuple[str, Mapping[str, Any]]]]:
        """In rank 0: calls a method of the learner; its result, and the events that it reported."""
        result = getattr(self._learner, method)(*arguments)
        events, self._events = self._events, []
        return result, events

    def publish(self, number: int) -> tuple[PolicyVersion, FolderFiles]:
        """In rank 0: the current weights as files."""
        assert self._learner is not None, "it is started"
        with tempfile.TemporaryDirectory(prefix="finqa-policy-") as folder:
            policy = self._learner.publish(Path(folder) / "policy", number)
            return policy, read_folder(Path(folder) / "policy")

    def save(self) -> FolderFiles:
        """In rank 0: the learner's state as files."""
        assert self._learner is not None, "it is started"
        with tempfile.TemporaryDirectory(prefix="finqa-state-") as folder:
            self._learner.save(Path(folder) / "state")
            return read_folder(Path(folder) / "state")

    def load(self, state: FolderFiles) -> None:
        """In rank 0: restores what `save` returned, in all ranks."""
        assert self._learner is not None, "it is started"
        with tempfile.TemporaryDirectory(prefix="finqa-state-") as folder:
            self._learner.load(write_folder(state, Path(folder) / "state"))

    def close(self) -> None:
        """In rank 0: ends the learner, and the service of the others."""
        if self._learner is not None:
            self._learner.close()
        if self._processes is not None:
            self._processes.close()

    def _join(self, leader: Place) -> LearnerProcesses:
        """Joins the others with the variables of torchrun. Each rank sees its own GPUs only, so it is the first there.

        Raises:
            ConfigError: The learner is for one process.
        """
        numbers = {"RANK": self._rank, "WORLD_SIZE": self._size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        rendezvous = {"MASTER_ADDR": leader.node, "MASTER_PORT": leader.port}
        os.environ.update({name: str(value) for name, value in {**numbers, **rendezvous}.items()})
        found = registry().first("join_processes", LearnerProcesses, learner=self._name)  # type: ignore[type-abstract]
        if found is None:
            raise ConfigError(
                f"Learner {self._name!r} trains in one process, not in {self._size}.", remedy="--learner-processes 1"
            )
        return found


def _report_in_a_call(error: FinqaError) -> None:
    """The controller watches the ranks itself."""
    del error
