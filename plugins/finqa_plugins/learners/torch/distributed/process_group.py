"""The processes that train together, and how they communicate: those that this one started, or `torchrun`.

Two groups: calls and numbers go over gloo, which may wait for as long as rollouts take; weights and gradients go over a
group of the device's own (NCCL on CUDA, gloo on the CPU).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from finqa_cli import errors
from finqa_cli.errors import ConfigError, FinqaError, LearnerProcessError
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.micro_batches import is_out_of_memory
from finqa_plugins.learners.torch.trained_model import device_name, pick_device

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_BETWEEN_CALLS = timedelta(days=7)
_IN_A_STEP = timedelta(minutes=30)
_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
_OF_ITS_KIND = ("ROLE_", "GROUP_", "TORCHELASTIC_")
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The block computes with the device as that of its thread.

    Learners are asked in any thread, and a new one is at device 0. FSDP2 takes places and streams from there: on
    another device than its weights' it would wait for nothing, and compute with what is still being gathered. Kernels
    that are launched without PyTorch's dispatcher (Triton) do likewise.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def give_back(device: torch.device) -> None:
    """Leaves to other processes what PyTorch keeps of a device's memory for later: an engine that slept during an
    update, and wakes after it, needs what it had before.
    """
    if device.type == "cuda":
        with on_device(device):  # a thread's own is device 0, on which this would take memory
            torch.cuda.empty_cache()


class Alone:
    """One process: nobody to talk to."""

    rank = 0
    size = 1
    leads = True

    def device(self, config: TorchLearnerConfig, devices: Sequence[int] = ()) -> torch.device:
        """Where this process computes: on its device of `devices`, unless the configuration names another."""
        return planned_device(config, devices, 0) or pick_device(config)

    def mesh(self, device: torch.device) -> DeviceMesh | None:
        """Over what weights are cut; None where they are not."""
        del device
        return None

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """The block runs in one process after the other."""
        yield

    def gathered(self, item: Any) -> list[Any]:
        """What each process gives, by rank."""
        return [item]

    def add(self, tensor: torch.Tensor) -> None:
        """Makes a tensor the sum of those of all processes."""


class Processes(Alone):
    """This process among several. The first leads: it makes the calls, the others follow.

    Whatever fails in a call ends the training: the process that failed leaves its error in the store and ends, and its
    peers, whose connections to it break, end as well.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int | None = None) -> None:
        """Joins no other process yet.

        Args:
            rank: Of this process.
            size: How many there are.
            local_rank: Of this process on its machine.
            local_size: How many there are on its machine; None: all.
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
        """Joins the others of this machine through a store that they share, and waits for them."""
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
        """Joins the others that `torchrun` started, and waits for them.

        Takes torchrun's variables out of the environment: a server that this process starts would take itself for one
        of the processes.
        """
        environment = os.environ
        dist.init_process_group("gloo", timeout=_BETWEEN_CALLS)
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._store = PrefixStore("finqa", TCPStore(host, port, is_master=False, wait_for_workers=False))
        for name in [name for name in environment if name in _OF_TORCHRUN or name.startswith(_OF_ITS_KIND)]:
            del environment[name]

    def device(self, config: TorchLearnerConfig, devices: Sequence[int] = ()) -> torch.device:
        """The CPU, or the CUDA device of `devices` with this process's number on its machine; without any the one that
        is as far from the last as this process from the first.

        Raises:
            ConfigError: The option names one device for all, or there are fewer than processes.
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
        """All processes in one row; each has one device, always of the same kind."""
        if self._mesh is None:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            with _over_loopback() if self._started else contextlib.nullcontext():
                group = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo", timeout=_IN_A_STEP)
            self._mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("shard",))
        return self._mesh

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """The block runs in one process after the other; one that fails in it lets the others lose touch."""
        for _ in range(self.rank):
            dist.barrier()
        yield
        for _ in range(self.rank, self.size):
            dist.barrier()

    def gathered(self, item: Any) -> list[Any]:
        """What each process gives, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def add(self, tensor: torch.Tensor) -> None:
        """Makes a tensor the sum of those of all processes."""
        assert self._mesh is not None, "weights are sharded before anything is learned"
        dist.all_reduce(tensor, group=self._mesh.get_group())

    @property
    def over_nccl(self) -> bool:
        """Whether weights and gradients go over NCCL, which waits for a process that is gone."""
        return self._mesh is not None and self._mesh.device_type == "cuda"

    def together(
        self, work: Callable[Arguments, Result], name: str, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Has every process do `name`, this one by `work`; what `work` calls in turn is part of it.

        Raises:
            FinqaError: Another process failed, or is gone.
        """
        if not self._between_calls.is_set():
            return work(*args, **kwargs)
        self._between_calls.clear()
        try:
            self._tell((name, args))
            return work(*args, **kwargs)
        except BaseException as error:
            self._broken = True
            if isinstance(error, Exception) and (_lost_touch(error) or self._aborted):
                raise self._failure(str(error).splitlines()[0]) from error
            raise
        finally:
            self._between_calls.set()

    def heard(self) -> tuple[str, tuple[Any, ...]] | None:
        """The leader's next call: a name and arguments; None once it closed or is gone."""
        said: list[Any] = [None]
        try:
            dist.broadcast_object_list(said, src=0)
        except RuntimeError as error:
            if _lost_touch(error):
                return None
            raise
        call: tuple[str, tuple[Any, ...]] | None = said[0]
        return call

    def failed(self, error: Exception) -> None:
        """Leaves an error for the leader. The first counts; processes that only lost a connection have none."""
        assert self._store is not None, "it has joined"
        if not _lost_touch(error) and self._store.add("failures", 1) == 1:
            if not isinstance(error, FinqaError):
                error = LearnerProcessError(f"{type(error).__name__}: {error}")
            message = f"Learner process {self.rank + 1} of {self.size} failed: {error.message}"
            self._store.set("failure", json.dumps([type(error).__name__, message, vars(error)]))

    def abort(self) -> None:
        """Ends what this process waits for over NCCL, which does not notice that another process is gone."""
        self._aborted = True
        if self.over_nccl:
            assert self._mesh is not None
            self._mesh.get_group().abort()

    def close(self) -> None:
        """Ends the others' service, and this process's part. After a failure, or while a call is under way, they end
        by themselves once this process is gone.
        """
        if self._broken or not self._between_calls.is_set():
            return
        try:
            if self.leads:
                self._tell(None)
            dist.destroy_process_group()
        except RuntimeError as error:
            if not _lost_touch(error):
                raise

    def _tell(self, call: tuple[str, tuple[Any, ...]] | None) -> None:
        dist.broadcast_object_list([call], src=0)

    def _failure(self, reason: str) -> FinqaError:
        """What another process failed with, or how it ended."""
        if self._store is not None and self._store.check(["failure"]):
            kind, message, facts = json.loads(self._store.get("failure"))
            error: FinqaError = getattr(errors, kind, FinqaError)(message)
            vars(error).update(facts)
            return error
        return self._end_of_another(reason)

    def _end_of_another(self, reason: str) -> FinqaError:
        message = f"Training on {self.size} processes ended: a process is gone ({reason})."
        return LearnerProcessError(message, remedy="see the output of torchrun")


def planned_device(config: TorchLearnerConfig, devices: Sequence[int], local_rank: int) -> torch.device | None:
    """The CUDA device that `devices` gives to a process; None where there is none or the configuration names one.

    Raises:
        ConfigError: PyTorch sees no such device.
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
    """Has gloo take the loopback interface inside, unless the environment names another."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if _GLOO_INTERFACE in os.environ or not names:
        yield
        return
    os.environ[_GLOO_INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[_GLOO_INTERFACE]


def _lost_touch(error: Exception) -> bool:
    """Whether an error says no more than that another process cannot be reached. NCCL without memory says more."""
    lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    return lost and not is_out_of_memory(error)
