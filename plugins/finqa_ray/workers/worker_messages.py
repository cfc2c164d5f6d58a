"""Messages between the controller and a rollout worker, and their packed form, of which the controller reads little.

An attempt has some 2,400 token ids and 450 log-probabilities. As Python's integers and floats they are most of the cost
of unpickling an attempt, and nothing needs them while attempts are played. So turns stay packed until the first access.
pickle itself looks up the fields of a frozen dataclass for each object; the packer here does so once per class.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from ipaddress import ip_address
from types import MemberDescriptorType
from typing import Any

from finqa_cli.contracts import EngineRoute
from finqa_cli.errors import FinqaError
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.players import Rules
from finqa_cli.rollout.pool import PoolStats
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Completion,
    GenerateRequest,
    PackedTurns,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Request to play an attempt. `ticket` is the number of this try by one worker."""

    ticket: int
    attempt: Attempt
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Request to stop playing the attempt with this ticket."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The engine's answer to the `Ask` with this number: a result or an error, and the usage of the episode."""

    number: int
    result: Completion | AssistantTurn | None = None
    error: FinqaError | None = None
    usage: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The engine begins, or ends, a wait in which the episode's clock stands still (see `contracts.uncounted`)."""

    number: int
    begins: bool


Delivery = Play | Cancel | Answer | Pause
"""Messages from the controller to a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The servers to which workers send requests directly from now on. It is sent by `RolloutWorker.offer`.

    Attributes:
        number: Number of the offer; newer offers have larger numbers.
        routes: Route to each replica; None: its requests go through the controller. Empty: all requests do.
        workers: Number of workers that share the servers.
    """

    number: int
    routes: tuple[EngineRoute | None, ...] = ()
    workers: int = 1

    def seen_from(self, node: str, controller: str) -> Offer:
        """Return the offer without the routes that do not work on a node: loopback addresses of other machines.

        Args:
            node: Address of the node.
            controller: Address of the controller's machine.
        """
        return replace(self, routes=tuple(one if reaches(one, node, controller) else None for one in self.routes))


def reaches(route: EngineRoute | None, node: str, controller: str) -> bool:
    """Return whether a route leads from a node to its server; a loopback address does so only on the server's node."""
    if route is None or not is_loopback(route.server.host):
        return route is not None
    return node == (route.node or controller) or is_loopback(node)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An attempt ended with a trajectory, or with an error that ends the run."""

    ticket: int
    trajectory: Trajectory | None = None
    error: FinqaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A try of an attempt ended in a fault, and the worker plays the attempt again."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Request of an episode for its next turn. `failed` is the replica on which a direct request for it failed."""

    number: int
    request: GenerateRequest | ChatRequest
    failed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """The answer to the `Ask` with this number is not needed any more."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """An event of the worker's pool; see `PoolListener`."""

    name: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An outcome for the breaker of the sandboxes: a start or a session that succeeded, or its fault."""

    fault: FinqaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """The worker has a newer offer than this one, and no request in progress under this one."""

    offer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """A fault for the breaker of the engine."""

    fault: FinqaError


Report = Played | Restarted | Ask | Withdraw | PoolEvent | Outcome | EngineFault | Unused
"""Messages from a worker to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """All reports since the last call of `collect`.

    Attributes:
        generation: Generation of the worker.
        reports: The reports in their order.
        turned: A turn was generated since the last call.
        answered: Numbers of the replicas that answered direct requests since the last call.
        stats: Figures of the worker's pool.
        inputs: See `Environment.inputs`.
        spent: See `Environment.spent`.
    """

    generation: int
    reports: tuple[Report, ...]
    turned: bool
    answered: frozenset[int]
    stats: PoolStats
    inputs: Mapping[str, str]
    spent: Mapping[str, float]


def portable(error: Exception) -> FinqaError:
    """Return an error that can be unpickled in another process: a copy without traceback, or one with its message."""
    if isinstance(error, FinqaError):
        try:
            copied = pickle.loads(pickle.dumps(error))
        except Exception:  # a plugin's class that cannot be pickled
            return FinqaError(error.message, remedy=error.remedy)
        if isinstance(copied, FinqaError):
            return copied
    return FinqaError(f"{type(error).__name__}: {error}")


def pack(message: object) -> bytes:
    """Return a message as bytes."""
    packed = io.BytesIO()
    _Packer(packed, pickle.HIGHEST_PROTOCOL).dump(message)
    return packed.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the message that `pack` packed. It must come from a process of the run, because it is unpickled."""
    return pickle.loads(packed)


def pack_turns(trajectory: Trajectory) -> Trajectory:
    """Return an attempt with its turns as `PackedTurns`."""
    turns = PackedTurns(pack(tuple(trajectory.turns)), len(trajectory.turns), trajectory.tokens)
    return replace(trajectory, turns=turns)


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if is_dataclass(kind) and kind.__module__.startswith("finqa_cli.") and _slots(kind) is not None:
            return _make, (kind, tuple(getattr(value, field.name) for field in fields(kind)))
        return NotImplemented


@cache
def _slots(kind: type) -> Sequence[Callable[[Any, Any], None]] | None:
    """Return the function that sets each field of a class; None if a field has no slot."""
    slots = [getattr(kind, field.name, None) for field in fields(kind)]
    found = [slot.__set__ for slot in slots if isinstance(slot, MemberDescriptorType)]
    return found if len(found) == len(slots) else None


def _make(kind: type, values: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    for put, value in zip(_slots(kind) or (), values, strict=True):
        put(made, value)
    return made
