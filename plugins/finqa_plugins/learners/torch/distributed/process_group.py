"""Communication of the processes that train together, started by the first one or by `torchrun`.

There are two groups: calls and numbers are sent over gloo, with a timeout longer than any rollout. Weights and
gradients are sent over a second group for the device (NCCL on CUDA, gloo on the CPU).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from finqa_cli import errors
from finqa_cli.errors import ConfigError, FinqaError, LearnerProcessError
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.network_interface import use_interface_to
from finqa_plugins.learners.torch.micro_batches import is_out_of_memory

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_BETWEEN_CALLS = timedelta(days=7)
_IN_A_STEP = timedelta(minutes=30)
PIECE_BYTES = 64 * 2**20
"""Largest part of a file that is sent to another machine at once."""

_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
_OF_ITS_KIND = ("ROLE_", "GROUP_", "TORCHELASTIC_")
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes the device the current one of the thread in the block.

    Learners are called in any thread, and a new thread uses device 0. FSDP2 uses the streams of the current device: if
    that is not the device of its weights, it does not wait for gathered weights and computes with incomplete ones.
    Kernels that are launched without PyTorch's dispatcher (Triton) also use the current device.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def release_memory(device: torch.device) -> None:
    """Releases the device memory that PyTorch caches: an engine that wakes after an update needs it again."""
    if device.type == "cuda":
        with on_device(device):  # by default a thread uses device 0, where this would allocate memory
            torch.cuda.empty_cache()


class SingleProcess:
    """One process that trains alone: the interface of `ProcessGroup` without communication."""

    rank = 0
    size = 1
    leads = True

    def device(self, config: TorchLearnerConfig, devices: Sequence[int] = ()) -> torch.device:
        """The device of this process: the one that `devices` gives it, unless the configuration names another."""
        return planned_device(config, devices, 0) or pick_device(config)

    def mesh(self, device: torch.device) -> DeviceMesh | None:
        """The mesh over which weights are sharded; None if they are not sharded."""
        del device
        return None

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Runs the block in one process after the other."""
        yield

    def received(self, folder: Path) -> contextlib.AbstractContextManager[Path]:
        """Gives the block the first process's folder, or on another machine a copy of it."""
        return contextlib.nullcontext(folder)

    def gather(self, item: Any) -> list[Any]:
        """The item of each process, by rank."""
        return [item]

    def add(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all processes, in place."""


class ProcessGroup(SingleProcess):
    """One of several processes. The first leads: it sends the calls, and the others execute them too.

    Any failure in a call ends the training: the process that failed leaves its error in the store and ends, and its
    peers, whose connections to it break, end as well.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int | None = None) -> None:
        """Joins no other process yet.

        Args:
            rank: Rank of this process.
            size: Number of processes.
            local_rank: Rank of this process on its machine.
            local_size: Number of processes on its machine; None: all.
        """
        self.rank, self.size, self._local_rank = rank, size, local_rank
        self.local_size = size if local_size is None else local_size
        self.leads = rank == 0
        self._store: Store | None = None
        self._mesh: DeviceMesh | None = None
        self._between_calls = threading.Event()
        self._between_calls.set()
        self._broken = False
        self._aborted = False
        self._started = False

    def join(self, store: Store) -> None:
        """Joins the other processes of this machine through a shared store, and waits for them."""
        with _over_loopback():
            dist.init_process_group(
                "gloo",
                store=PrefixStore("calls", store),
                rank=self.rank,
                world_size=self.size,
                timeout=_BETWEEN_CALLS,
            )
        self._store = PrefixStore("finqa", store)
        self._started = True

    def join_torchrun(self) -> None:
        """Joins the other processes that `torchrun` started, and waits for them.

        Removes torchrun's variables from the environment: a server that this process starts would otherwise believe
        that it is one of the processes.
        """
        environment = os.environ
        if self.local_size < self.size:
            use_interface_to(environment["MASTER_ADDR"])
        dist.init_process_group("gloo", timeout=_BETWEEN_CALLS)
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._store = PrefixStore("finqa", TCPStore(host, port, is_master=False, wait_for_workers=False))
        for name in [name for name in environment if name in _OF_TORCHRUN or name.startswith(_OF_ITS_KIND)]:
            del environment[name]

    def device(self, config: TorchLearnerConfig, devices: Sequence[int] = ()) -> torch.device:
        """The CPU, or the CUDA device at index `local_rank` of `devices`; without `devices`, counted from the last one.

        Raises:
            ConfigError: The option names one device for all processes, or there are fewer devices than processes.
        """
        if config.device.startswith("cuda:"):
            raise ConfigError(
                f"learner option device={config.device} is one device, but there are {self.size} learner processes.",
                remedy="--set learner.options.device=auto",
            )
        if (planned := planned_device(config, devices, self._local_rank)) is not None:
            return planned
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if config.device != "cpu" and count and self._local_rank >= count:
            raise ConfigError(
                f"Process {self._local_rank + 1} of this machine has no CUDA device: PyTorch sees {count}.",
                remedy=f"--learner-processes {count}",
            )
        return torch.device(device_name(config.device, max(0, count - self._local_rank)))

    def mesh(self, device: torch.device) -> DeviceMesh:
        """A one-dimensional mesh of all processes; each has one device, all of the same kind."""
        if self._mesh is None:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            with _over_loopback() if self._started else contextlib.nullcontext():
                group = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo", timeout=_IN_A_STEP)
            self._mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("shard",))
        return self._mesh

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Runs the block in one process after the other; a process that fails in it breaks the connections."""
        for _ in range(self.rank):
            dist.barrier()
        yield
        for _ in range(self.rank, self.size):
            dist.barrier()

    @contextlib.contextmanager
    def received(self, folder: Path) -> Iterator[Path]:
        """Gives the block the first process's folder, or on another machine a copy of it.

        With several machines, the first process sends its files in pieces, and the first process of each other machine
        writes a temporary copy.
        """
        if self.local_size == self.size:
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="finqa-state-") as temporary:
            keeps = self._local_rank == 0 and not self.leads
            copy = Path(temporary) / folder.name
            copy.mkdir()
            for name, piece in self._pieces(folder):
                if keeps:
                    with (copy / name).open("ab") as file:
                        file.write(piece)
            copies = self.gather(str(copy) if keeps else str(folder) if self.leads else "")
            yield Path(next(path for path in reversed(copies[: self.rank + 1]) if path))
            self.gather(None)  # wait until all processes have read it

    def _pieces(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        """Name and content of each piece of the first process's files, in all processes."""
        paths = sorted(path for path in folder.glob("*") if path.is_file()) if self.leads else []
        own = ((path.name, piece) for path in paths for piece in _read_pieces(path))
        while True:
            sent: list[Any] = [next(own, None) if self.leads else None]
            dist.broadcast_object_list(sent, src=0)
            if sent[0] is None:
                return
            yield sent[0]

    def gather(self, item: Any) -> list[Any]:
        """The item of each process, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def add(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all processes, in place."""
        assert self._mesh is not None, "weights are sharded before anything is learned"
        dist.all_reduce(tensor, group=self._mesh.get_group())

    @property
    def over_nccl(self) -> bool:
        """Whether weights and gradients are sent over NCCL, which keeps waiting for a process that is gone."""
        return self._mesh is not None and self._mesh.device_type == "cuda"

    def together(
        self, work: Callable[Arguments, Result], name: str, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Executes the call `name` in every process, in this one as `work`. Nested calls in `work` are not sent.

        Raises:
            FinqaError: Another process failed, or is gone.
        """
        if not self._between_calls.is_set():
            return work(*args, **kwargs)
        self._between_calls.clear()
        try:
            self._send((name, args))
            return work(*args, **kwargs)
        except BaseException as error:
            self._broken = True
            if isinstance(error, Exception) and (_is_lost_connection(error) or self._aborted):
                raise self._failure(str(error).splitlines()[0]) from error
            raise
        finally:
            self._between_calls.set()

    def receive_call(self) -> tuple[str, tuple[Any, ...]] | None:
        """The leader's next call: a name and arguments; None once the leader closed or is gone."""
        received: list[Any] = [None]
        try:
            dist.broadcast_object_list(received, src=0)
        except RuntimeError as error:
            if _is_lost_connection(error):
                return None
            raise
        call: tuple[str, tuple[Any, ...]] | None = received[0]
        return call

    def leave_error(self, error: Exception) -> None:
        """Stores an error for the leader: only the first one, and none that only reports a lost connection."""
        assert self._store is not None, "it has joined"
        if not _is_lost_connection(error) and self._store.add("failures", 1) == 1:
            if not isinstance(error, FinqaError):
                error = LearnerProcessError(f"{type(error).__name__}: {error}")
            message = f"Learner process {self.rank + 1} of {self.size} failed: {error.message}"
            self._store.set("failure", json.dumps([type(error).__name__, message, vars(error)]))

    def abort(self) -> None:
        """Aborts waiting operations of NCCL, which does not notice that another process is gone."""
        self._aborted = True
        if self.over_nccl:
            assert self._mesh is not None
            self._mesh.get_group().abort()

    def close(self) -> None:
        """Leaves the group; if this process leads, ends the service of the others first.

        After a failure, or while a call is in progress, it does nothing: the others end once this process is gone.
        """
        if self._broken or not self._between_calls.is_set():
            return
        try:
            if self.leads:
                self._send(None)
            dist.destroy_process_group()
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise

    def _send(self, call: tuple[str, tuple[Any, ...]] | None) -> None:
        dist.broadcast_object_list([call], src=0)

    def _failure(self, reason: str) -> FinqaError:
        """The error of another process, or how it ended."""
        if self._store is not None and self._store.check(["failure"]):
            kind, message, facts = json.loads(self._store.get("failure"))
            error: FinqaError = getattr(errors, kind, FinqaError)(message)
            vars(error).update(facts)
            return error
        return self._end_of_another(reason)

    def _end_of_another(self, reason: str) -> FinqaError:
        message = f"Training on {self.size} processes ended: a process ended ({reason})."
        return LearnerProcessError(message, remedy="see the output of torchrun")


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(PIECE_BYTES)
        while piece := file.read(PIECE_BYTES):
            yield piece


def end_process(status: int) -> NoReturn:
    """Ends a process whose call failed, without finalizing the interpreter.

    Threads of gloo may still wait in collectives of that call. If one returns while the interpreter is finalized, it
    aborts the process (SIGABRT, "terminate called without an active exception").
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def pick_device(config: TorchLearnerConfig) -> torch.device:
    """The device that the configuration names, or the default one; see `device_name`."""
    return torch.device(device_name(config.device, torch.cuda.device_count() if torch.cuda.is_available() else 0))


def device_name(asked: str, devices: int) -> str:
    """The device to use if there are `devices` CUDA devices; `auto`: the last one, because engines use the first ones.

    Raises:
        ConfigError: There is no such device.
    """
    if asked == "cpu" or (asked == "auto" and not devices):
        return "cpu"
    number = int(asked.removeprefix("cuda:")) if ":" in asked else devices - 1
    if not 0 <= number < devices:
        seen = f"devices 0 to {devices - 1}" if devices else "no CUDA device"
        raise ConfigError(
            f"learner option device={asked}, but PyTorch sees {seen}.", remedy="--set learner.options.device=auto"
        )
    return f"cuda:{number}"


def planned_device(config: TorchLearnerConfig, devices: Sequence[int], local_rank: int) -> torch.device | None:
    """The CUDA device that `devices` gives to a process; None if it gives none, or the configuration names a device.

    Raises:
        ConfigError: PyTorch has no such device.
    """
    if not devices or config.device not in ("auto", "cuda"):
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices[local_rank] >= count:
        raise ConfigError(
            f"The placement plan gives learner process {local_rank + 1} of this machine cuda:{devices[local_rank]}, "
            f"but PyTorch sees {count} CUDA devices.",
            remedy="finqa doctor",
        )
    return torch.device(f"cuda:{devices[local_rank]}")


@contextlib.contextmanager
def _over_loopback() -> Iterator[None]:
    """Makes gloo use the loopback interface in the block, unless the environment names another one."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if _GLOO_INTERFACE in os.environ or not names:
        yield
        return
    os.environ[_GLOO_INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[_GLOO_INTERFACE]


def _is_lost_connection(error: Exception) -> bool:
    """Whether an error only reports that another process cannot be reached; out of memory in NCCL is another error."""
    lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    return lost and not is_out_of_memory(error)
