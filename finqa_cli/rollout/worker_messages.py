"""What the controller and a rollout worker send each other, as bytes of which the controller reads little.

An attempt has some 2,400 token ids and 450 log-probabilities. As Python's integers and floats they are most of what it
costs to read it, and nothing needs them while attempts are played, so turns stay bytes until they are looked at.
Pickle's own way with frozen dataclasses looks up the fields of each object; here a class looks them up once.
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
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import PoolStats
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Completion,
    GenerateRequest,
    PackedTurns,
    Sampling,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How attempts are played.

    Attributes:
        limits: Limits of an episode.
        sampling: Sampling of a turn; each turn has a seed of its own.
        max_retries: Recoveries and restarts of an attempt.
        max_context: Longest prompt plus completion of a token engine, in tokens; 0 for a chat engine.
    """

    limits: Limits
    sampling: Sampling
    max_retries: int
    max_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Play an attempt. `ticket` names this one try of it by one worker."""

    ticket: int
    attempt: Attempt
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Play it no further."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The engine's answer to an `Ask`: a result or an error, and what the episode has used."""

    number: int
    result: Completion | AssistantTurn | None = None
    error: FinqaError | None = None
    usage: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The engine begins, or ends, a wait that is not the policy's doing (see `contracts.uncounted`)."""

    number: int
    begins: bool


Delivery = Play | Cancel | Answer | Pause
"""From the controller to a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The servers that workers ask themselves from now on. A call of its own: it is taken when the call returns.

    Attributes:
        number: The largest is the newest.
        routes: Route to each replica; None: its requests pass through the controller. Empty: all requests do.
        workers: Workers that share the servers.
    """

    number: int
    routes: tuple[EngineRoute | None, ...] = ()
    workers: int = 1

    def seen_from(self, node: str, controller: str) -> Offer:
        """Return it without the routes that do not lead from a node to the server: addresses of other loopbacks."""
        return replace(self, routes=tuple(one if reaches(one, node, controller) else None for one in self.routes))


def reaches(route: EngineRoute | None, node: str, controller: str) -> bool:
    """Return whether a route means the same server on a node as on the machine of the server."""
    if route is None or not is_loopback(route.server.host):
        return route is not None
    return node == (route.node or controller) or is_loopback(node)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is of the machine that uses it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An attempt ended, or raised what ends the run."""

    ticket: int
    trajectory: Trajectory | None = None
    error: FinqaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A try of an attempt ended in a fault, and the worker plays the attempt again."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An episode needs its next turn. `failed` is the replica that the worker asked for it in vain."""

    number: int
    request: GenerateRequest | ChatRequest
    failed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """The answer to an `Ask` is not needed any more."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """An event of the worker's pool; see `PoolListener`."""

    name: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One for the breaker of the sandboxes: a start or a session that succeeded, or the fault that it ended in."""

    fault: FinqaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """The worker has another offer than this one, and no request under it any more."""

    offer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """One for the breaker of the engine."""

    fault: FinqaError


Report = Played | Restarted | Ask | Withdraw | PoolEvent | Outcome | EngineFault | Unused
"""From a worker to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """All reports since the last ones.

    Attributes:
        generation: The start of the worker that they are of.
        reports: In their order.
        turned: The engine generated a turn since the last ones.
        answered: Replicas that answered the worker itself since the last ones.
        stats: Figures of the worker's pool.
        inputs: See `Environment.inputs`.
    """

    generation: int
    reports: tuple[Report, ...]
    turned: bool
    answered: frozenset[int]
    stats: PoolStats
    inputs: Mapping[str, str]


def portable(error: Exception) -> FinqaError:
    """Return an error that arrives whole in another process: itself without its frames, or its words."""
    if isinstance(error, FinqaError):
        try:
            copied = pickle.loads(pickle.dumps(error))
        except Exception:  # of a class of a plugin
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
    """Return the message of `pack`, which must come from a process of the run: it is pickled."""
    return pickle.loads(packed)


def pack_turns(trajectory: Trajectory) -> Trajectory:
    """Return an attempt whose turns are packed."""
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
    """Return what sets each field of a class; None where a field has no slot."""
    slots = [getattr(kind, field.name, None) for field in fields(kind)]
    found = [slot.__set__ for slot in slots if isinstance(slot, MemberDescriptorType)]
    return found if len(found) == len(slots) else None


def _make(kind: type, values: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    for put, value in zip(_slots(kind) or (), values, strict=True):
        put(made, value)
    return made
