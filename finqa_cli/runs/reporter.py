"""How a workflow tells a person what it is doing. Results are return values; this is only progress."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """Calls never block for long and never raise. Phases are named, and several may run at once."""

    @property
    def live(self) -> bool:
        """True when what is shown is overwritten, so that showing something every second disturbs nobody."""
        ...

    def line(self, text: str) -> None:
        """One sentence worth keeping on the screen."""
        ...

    def start(self, phase: str, total: int | None) -> None:
        """A phase of `total` steps begins; None when nobody knows how many."""
        ...

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """`done` steps of the phase are finished in all; `fields` are shown beside it, such as `reward=0.4`."""
        ...

    def finish(self, phase: str) -> None:
        """The phase is over, however it ended; its last state stays to be read. Idempotent."""
        ...

    def drop(self, phase: str) -> None:
        """The phase is over, and nobody needs to read how it ended. Idempotent."""
        ...


class NullReporter:
    """Says nothing: for tests and for `--json` and `--quiet`."""

    live = False

    def line(self, text: str) -> None:
        """Drops it."""

    def start(self, phase: str, total: int | None) -> None:
        """Drops it."""

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Drops it."""

    def finish(self, phase: str) -> None:
        """Drops it."""

    def drop(self, phase: str) -> None:
        """Drops it."""
