"""One learner process on a node: the wrapped learner, which joins the others with the variables of `torchrun`."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from finqa_cli import __version__
from finqa_cli.contracts import Learner, LearnerContext, LearnerEvents, LearnerProcesses
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import PolicyVersion
from finqa_ray.folder_files import Bytes, Delivered, Inbox, Part, list_files, read_part
from finqa_ray.node_folder import NodeFolder
from finqa_ray.node_probe import digest_model

_OUT = "out"
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs.

    Attributes:
        version: Version of finqa there.
        node: Address of the node.
        port: A free port of the node.
        pid: Process id of the actor.
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
    """A Ray actor with one rank; its calls run one after the other in its main thread.

    Rank 0 has the learner; the other ranks run `serve`, in which they take part in the calls of rank 0.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        """Joins no other rank yet.

        Args:
            name: Name of the wrapped learner.
            rank: Rank of this process.
            size: Number of ranks.
        """
        self._name, self._rank, self._size = name, rank, size
        self._learner: Learner | None = None
        self._processes: LearnerProcesses | None = None
        self._events: list[tuple[str, Mapping[str, Any]]] = []
        self._folder = NodeFolder()
        self._inbox = Inbox(self._folder.path)
        self._base = ""

    def place(self) -> Place:
        """Return where this rank runs."""
        node = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((node, 0))
            port = free.getsockname()[1]
        return Place(version=__version__, node=node, port=port, pid=os.getpid())

    def lacks(self, model: str, digests: Mapping[str, str]) -> bool:
        """Return whether the model with these digests is missing at this path of the node."""
        return digest_model(model) != digests

    def receive(self, delivery: int, part: Part, content: Bytes) -> None:
        """Writes a part of a folder into the folder of this process; see `Inbox`.

        Raises:
            StorageError: The part arrived damaged, or cannot be written.
        """
        self._inbox.receive(delivery, part, content)

    def take_model(self, model: Delivered) -> str:
        """Return the folder of the base model, whose parts were received.

        Raises:
            StorageError: The model was not received completely, or cannot be written.
        """
        return str(self._inbox.take(model, "model"))

    def serve(self, leader: Place, model: str) -> int:
        """In rank 1 and above: takes part in each call of rank 0 until that closes; returns the exit status.

        Args:
            leader: Place of rank 0.
            model: Folder or hub id of the base model on this node.
        """
        try:
            return self._join(leader).serve(model)
        finally:
            self._folder.close()

    def start(self, leader: Place, options: Mapping[str, Any], context: LearnerContext, model: str) -> Abilities:
        """In rank 0: joins the other ranks and starts the learner.

        Args:
            leader: Place of this rank.
            options: Options of the learner.
            context: Context on the controller; published adapters name its model as their base.
            model: Folder or hub id of the base model on this node.

        Raises:
            FinqaError: As `registry().create` and `Learner.start`.
        """
        if self._size > 1:
            self._processes = self._join(leader)
        self._base = context.model
        learner: Learner = registry().create("learner", self._name, options, replace(context, model=model))
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
        """In rank 0: calls a method of the learner; returns its result and the events that it reported."""
        result = getattr(self._learner, method)(*arguments)
        events, self._events = self._events, []
        return result, events

    def publish(self, number: int) -> tuple[PolicyVersion, dict[str, int]]:
        """In rank 0: writes the current weights; returns the version and the size in bytes of each file, see `part`."""
        assert self._learner is not None, "it is started"
        folder = self._clear()
        policy = self._learner.publish(folder, number)
        _name_base(folder, self._base)
        return policy, list_files(folder)

    def save(self) -> dict[str, int]:
        """In rank 0: writes the learner's state; returns the size in bytes of each file, see `part`."""
        assert self._learner is not None, "it is started"
        folder = self._clear()
        self._learner.save(folder)
        return list_files(folder)

    def part(self, name: str, start: int, count: int) -> tuple[Part, Bytes]:
        """In rank 0: returns a part of a file of the last `publish` or `save`; see `read_part`."""
        return read_part(self._folder.path / _OUT, name, start, count)

    def forget(self) -> None:
        """In rank 0: removes the files of the last `publish` or `save`."""
        self._clear()

    def load(self, state: Delivered) -> None:
        """In rank 0: restores what `save` wrote and `receive` received, in all ranks."""
        assert self._learner is not None, "it is started"
        folder = self._inbox.take(state, "state")
        try:
            self._learner.load(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """In rank 0: closes the learner, which ends `serve` in the other ranks."""
        try:
            if self._learner is not None:
                self._learner.close()
            if self._processes is not None:
                self._processes.close()
        finally:
            self._folder.close()

    def _clear(self) -> Path:
        """Removes the written files, and returns the folder to write to."""
        out = self._folder.path / _OUT
        shutil.rmtree(out, ignore_errors=True)
        return out

    def _join(self, leader: Place) -> LearnerProcesses:
        """Joins the other ranks with the variables of torchrun. Each rank sees only its own GPUs: its local rank is 0.

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


def _name_base(folder: Path, base: str) -> None:
    """Writes the controller's name of the base into an adapter: the model may be at another path on this node."""
    path = folder / _ADAPTER
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
        path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _report_in_a_call(error: FinqaError) -> None:
    """Ignores the error: the controller watches the ranks itself."""
    del error
