"""This process's connection to a Ray cluster, which its engines and its learner share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import structlog
from ray._private import worker
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from finqa_cli import __version__
from finqa_cli.errors import ConfigError, FinqaError, ServiceUnavailableError, StorageError
from finqa_cli.extend import registry
from finqa_cli.local_models import local_model
from finqa_ray.folder_files import Bytes
from finqa_ray.node_probe import digest_model
from finqa_ray.sent_parts import SentParts

log = structlog.get_logger(__name__)

PLACE_S = 60.0
"""Seconds in which nodes must join or become free; otherwise the cluster is too small."""

REACH_S = 10.0
"""Seconds that the head may take to accept a connection."""

LOCAL = "local"


class Cluster:
    """A connection to a cluster; see `join`.

    Attributes:
        address: The address that was joined.
        users: Number of calls of `join` without a `leave`.
        sent: Parts that are sent to nodes. This process owns the objects: an actor's would be lost with its node.
    """

    def __init__(self, address: str) -> None:
        """Connects.

        Raises:
            ServiceUnavailableError: There is no cluster at the address, or this machine is not one of its nodes.
        """
        self.address = address
        self.users = 0
        self._groups: dict[str, PlacementGroup] = {}
        self._in_use: Counter[str] = Counter()
        self._placing = threading.Lock()
        self.sent = SentParts(_put)
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(address)

    def place(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str) -> PlacementGroup:
        """Return the placement group of a name, which the first call makes; each call needs a `release`.

        Raises:
            ConfigError: The cluster does not have these resources, or not within `PLACE_S`.
        """
        with self._placing:
            if name not in self._groups:
                group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
                if not group.wait(PLACE_S):
                    there = {kind: ray.cluster_resources().get(kind, 0.0) for kind in ("CPU", "GPU")}
                    remove_placement_group(group)
                    wanted = {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in there}
                    raise ConfigError(
                        f"The Ray cluster has no room for {len(bundles)} of {name}, which take {wanted['CPU']:g} CPUs "
                        f"and {wanted['GPU']:g} GPUs: it has {there['CPU']:g} CPUs and {there['GPU']:g} GPUs, some of "
                        "which may be taken.",
                        remedy="--engine-replicas and --learner-processes with smaller numbers, or more nodes",
                    )
                self._groups[name] = group
            self._in_use[name] += 1
            return self._groups[name]

    def release(self, name: str) -> None:
        """Undo one `place`; the last call releases the resources, which ends processes that still run there."""
        with self._placing:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                remove_placement_group(self._groups.pop(name))

    def close(self) -> None:
        """End the connection and everything that it started, unless the connection existed before this object."""
        if self._connected:
            ray.shutdown()


_lock = threading.Lock()
_joined: list[Cluster] = []


def join(address: str) -> Cluster:
    """Return this process's cluster, connected; each call needs a `leave`.

    Args:
        address: `auto` (RAY_ADDRESS, else the cluster that this machine belongs to), `local` (a cluster of this
            machine alone, which ends with the process) or HOST:PORT.

    Raises:
        ServiceUnavailableError: No cluster can be reached there.
    """
    with _lock:
        if not _joined:
            _joined.append(Cluster(address))
        _joined[0].users += 1
        return _joined[0]


def leave(cluster: Cluster) -> None:
    """Undo one `join`; the last call ends the connection."""
    with _lock:
        cluster.users -= 1
        if cluster.users == 0:
            _joined.remove(cluster)
            cluster.close()


def bundle(component: str, kind: str, config: Any, *, gpus: int) -> dict[str, float]:
    """Return the resources of one replica or rank: a CPU, and GPUs if the cluster has any and the component uses them.

    Args:
        component: Name of the wrapped engine or learner.
        kind: `engine` or `learner`.
        config: Its options; their property `device_use` has priority over the component's `devices`.
        gpus: Number of GPUs, if it uses them.
    """
    use = getattr(config, "device_use", registry().find(kind, component).devices)
    wanted = use != "none" and ray.cluster_resources().get("GPU", 0.0) > 0
    return {"CPU": 1.0, **({"GPU": float(gpus)} if wanted else {})}


def options(group: PlacementGroup, index: int, resources: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of an actor in a bundle of a placement group."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    return {
        "num_cpus": resources["CPU"],
        "num_gpus": resources.get("GPU", 0.0),
        "scheduling_strategy": strategy,
        "max_task_retries": 0,
    }


def digest_folder(model: str) -> dict[str, str]:
    """Return the digests by which a node checks whether it has a model; none if its files are not here."""
    return digest_model(local_model(model))


def _put(content: Bytes) -> Any:
    try:
        return ray.put(content)
    except RayError as error:
        raise StorageError(f"Ray's object store on this machine takes no {content.nbytes} bytes: {error}") from error


def cause(error: RayTaskError) -> BaseException:
    """Return the exception that an actor raised."""
    found = error.cause
    return found if isinstance(found, BaseException) else error


async def answer_of(call: Any, who: str, *, failed: type[FinqaError], gone: type[FinqaError]) -> Any:
    """Return the result of a call of an actor. Cancellation cancels the call.

    Args:
        call: The reference that `remote` returned.
        who: Name of the actor in messages.
        failed: Error class for exceptions of the actor that are not finqa's.
        gone: Error class for a process or node that is gone.

    Raises:
        FinqaError: The error of the actor, or one of `failed` and `gone`.
    """
    try:
        return await call
    except asyncio.CancelledError:
        with contextlib.suppress(RayError):
            ray.cancel(call)
        raise
    except RayTaskError as error:
        found = cause(error)
        if isinstance(found, FinqaError):
            raise found from None
        raise failed(f"{who}: {type(found).__name__}: {found}") from error
    except RayError as error:
        raise gone(f"{who} is gone: {str(error).splitlines()[0]}") from error


def check_version(version: str, node: str) -> None:
    """Refuse a node with another version of finqa.

    Raises:
        ConfigError: The versions differ.
    """
    if version != __version__:
        raise ConfigError(
            f"Node {node} has finqa {version}, and the controller has {__version__}.",
            remedy=f"pip install 'finqa[ray]=={__version__}' on that node",
        )


def check_versions(message: str) -> None:
    """Raise an error with a remedy if Ray's error message is about different versions of Ray or Python.

    Raises:
        ConfigError: The error is about versions.
    """
    found = re.findall(r"(Ray|Python): (\S+)", message)
    if "Version mismatch" not in message or len(found) != 4:
        return
    (_, theirs), (_, python), (_, ours), (_, own) = found
    raise ConfigError(
        f"The cluster runs Ray {theirs} on Python {python}, and this machine Ray {ours} on Python {own}: Ray lets only "
        "equal versions join.",
        remedy=f"pip install ray=={theirs}"
        if theirs != ours
        else f"make this machine's virtual environment with Python {python}, or that of each node with Python {own}",
    )


def _reach(address: str) -> None:
    """Raises OSError if nothing listens at HOST:PORT, which Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=REACH_S).close()


def _note(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """Logs the messages of Ray about nodes. Ray has no option for this and prints to stdout, where results belong."""
    del ignore_prefix
    # Log: Ray prints a message about its nodes.
    log.debug("Ray says", lines=data["lines"])


def _connect(address: str) -> None:
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # a node that is gone is an error of the engine or learner
    worker.print_to_stdstream = _note
    details: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        _reach(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, configure_logging=False, **details)
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, FinqaError):
            raise
        check_versions(str(error))
        raise ServiceUnavailableError(
            f"No Ray cluster can be reached at cluster.address={address}: {str(error).splitlines()[0]}",
            remedy="--set cluster.address=local, or the address of the head: HOST:PORT",
        ) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)  # Ray sets its own handler, which ends the process at once
