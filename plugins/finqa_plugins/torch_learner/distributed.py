"""The processes that train together under `torchrun`, and how they talk.

Two groups: calls and numbers go over gloo, which may wait for as long as rollouts take; weights and gradients go over a
group of the device's own (NCCL on CUDA, gloo on the CPU).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from finqa_cli.errors import ConfigError, FinqaError
from finqa_plugins.torch_learner.config import TorchLearnerConfig
from finqa_plugins.torch_learner.model import device_name, pick_device

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_BETWEEN_CALLS = timedelta(days=7)
_IN_A_STEP = timedelta(minutes=30)
_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
_OF_ITS_KIND = ("ROLE_", "GROUP_", "TORCHELASTIC_")


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
        torch.cuda.empty_cache()


class Alone:
    """One process: nobody to talk to."""

    rank = 0
    size = 1
    leads = True

    def device(self, config: TorchLearnerConfig) -> torch.device:
        """Where this process computes."""
        return pick_device(config)

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
    """This process among those that `torchrun` started. The first leads: it makes the calls, the others follow.

    Whatever fails in a call ends the training: who fails says why in torchrun's store and leaves, and its peers, whose
    connections to it break, end as well.
    """

    def __init__(self) -> None:
        """Joins the others, and waits for them.

        Takes torchrun's variables out of the environment: a server that this process starts would take itself for one
        of the processes.
        """
        environment = os.environ
        self.rank, self.size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.leads = self.rank == 0
        self._local_rank = int(environment["LOCAL_RANK"])
        dist.init_process_group("gloo", timeout=_BETWEEN_CALLS)
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._store = PrefixStore("finqa", TCPStore(host, port, is_master=False, wait_for_workers=False))
        for name in [name for name in environment if name in _OF_TORCHRUN or name.startswith(_OF_ITS_KIND)]:
            del environment[name]
        self._mesh: DeviceMesh | None = None
        self._in_a_call = False
        self._broken = False

    def device(self, config: TorchLearnerConfig) -> torch.device:
        """The CPU, or the CUDA device that is as far from the last as this process from the first of its machine.

        Raises:
            ConfigError: The option names one device for all, or there are fewer than processes.
        """
        if config.device.startswith("cuda:"):
            raise ConfigError(
                f"learner option device={config.device} is one device, but torchrun started {self.size} processes.",
                remedy="--set learner.options.device=auto",
            )
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if config.device != "cpu" and devices and self._local_rank >= devices:
            raise ConfigError(
                f"Process {self._local_rank + 1} of this machine has no CUDA device: PyTorch sees {devices}.",
                remedy=f"torchrun --nproc-per-node {devices}",
            )
        return torch.device(device_name(config.device, max(0, devices - self._local_rank)))

    def mesh(self, device: torch.device) -> DeviceMesh:
        """All processes in one row; each has one device, always of the same kind."""
        if self._mesh is None:
            if device.type == "cuda":
                torch.cuda.set_device(device)
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
        if self._in_a_call:
            return work(*args, **kwargs)
        self._in_a_call = True
        try:
            self._tell((name, args))
            return work(*args, **kwargs)
        except BaseException as error:
            self._broken = True
            if isinstance(error, Exception) and _lost_touch(error):
                raise self._failure(error) from error
            raise
        finally:
            self._in_a_call = False

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
        """Leaves word for the leader. The first to fail is heard; those that lose touch with it have nothing to add."""
        if not _lost_touch(error) and self._store.add("failures", 1) == 1:
            reason = error.message if isinstance(error, FinqaError) else f"{type(error).__name__}: {error}"
            self._store.set("failure", f"process {self.rank + 1} of {self.size} failed: {reason}")

    def close(self) -> None:
        """Ends the others' service, and this process's part. After a failure, or while a call is under way, they end
        by themselves once this process is gone.
        """
        if self._broken or self._in_a_call:
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

    def _failure(self, error: Exception) -> FinqaError:
        reason = f"a process is gone ({str(error).splitlines()[0]})"
        if self._store.check(["failure"]):
            reason = self._store.get("failure").decode()
        return FinqaError(f"Training on {self.size} processes ended: {reason}", remedy="see the output of torchrun")


def _lost_touch(error: Exception) -> bool:
    """Whether an error says no more than that another process cannot be reached."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
