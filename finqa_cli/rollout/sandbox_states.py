"""The states of a sandbox in the pool, the transitions between them, and the event of each transition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from finqa_cli.errors import FinqaError


class SandboxState(Enum):
    """State of one sandbox, from the call that starts it until the pool stops using it.

    Only a READY sandbox gets new sessions. Sessions that run on it stay through SUSPECT and FAULTED, and are cut in
    LOST and CLOSED. How many sessions run on it is a number beside the state, see `PooledSandbox.sessions`.
    """

    STARTING = "starting"
    """The provider is starting it."""
    READY = "ready"
    """It runs, and nothing speaks against it."""
    SUSPECT = "suspect"
    """It did not answer a health check, or a neighbour did not while it was idle. The next check decides."""
    FAULTED = "faulted"
    """A session on it ended in a fault, which the breaker has counted. The next check decides."""
    SPENT = "spent"
    """Its only session ended, where each session needs a fresh sandbox."""
    LOST = "lost"
    """It died, or it fails every session."""
    FAILED = "failed"
    """It did not start."""
    CLOSED = "closed"
    """The pool was closed while it ran."""


TRANSITIONS: Mapping[SandboxState, frozenset[SandboxState]] = {
    SandboxState.STARTING: frozenset({SandboxState.READY, SandboxState.FAILED, SandboxState.CLOSED}),
    SandboxState.READY: frozenset(
        {SandboxState.SUSPECT, SandboxState.FAULTED, SandboxState.SPENT, SandboxState.CLOSED}
    ),
    SandboxState.SUSPECT: frozenset(
        {SandboxState.READY, SandboxState.FAULTED, SandboxState.SPENT, SandboxState.LOST, SandboxState.CLOSED}
    ),
    SandboxState.FAULTED: frozenset({SandboxState.READY, SandboxState.SPENT, SandboxState.LOST, SandboxState.CLOSED}),
    SandboxState.SPENT: frozenset({SandboxState.CLOSED}),
    SandboxState.LOST: frozenset(),
    SandboxState.FAILED: frozenset(),
    SandboxState.CLOSED: frozenset(),
}
"""The states that may follow each state."""

RUNNING = frozenset({SandboxState.READY, SandboxState.SUSPECT, SandboxState.FAULTED})
"""The states in which sessions run."""

EVENTS: Mapping[tuple[SandboxState, SandboxState], str] = {
    (SandboxState.STARTING, SandboxState.READY): "sandbox_ready",
    (SandboxState.STARTING, SandboxState.FAILED): "sandbox_failed",
    (SandboxState.READY, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.SUSPECT, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.FAULTED, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.SUSPECT, SandboxState.LOST): "sandbox_lost",
    (SandboxState.FAULTED, SandboxState.LOST): "sandbox_lost",
}
"""The events that listeners of the pool receive; a READY sandbox that follows a lost one is `sandbox_replaced`."""


class IllegalTransitionError(FinqaError):
    """The pool tried a transition that the table does not have: a defect of the pool."""


def event_of(state: SandboxState, to: SandboxState, *, replaces_lost: bool = False) -> str | None:
    """Return the event of a transition; None for one that listeners do not receive.

    Raises:
        IllegalTransitionError: The table has no such transition.
    """
    if to not in TRANSITIONS[state]:
        raise IllegalTransitionError(f"A sandbox of the pool cannot change from {state.value} to {to.value}.")
    event = EVENTS.get((state, to))
    return "sandbox_replaced" if event == "sandbox_ready" and replaces_lost else event
