"""How a command shows a person what it is doing. Results are return values; this is only progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.types import Trajectory


class Reporter:
    """Shows nothing; subclasses show something. Calls never block for long and never raise.

    Phases are named, and several may run at once.

    Attributes:
        live: The display is overwritten, so that showing something every second disturbs no reader.
    """

    live: bool = False

    def line(self, text: str) -> None:
        """Shows one sentence that is worth keeping on the screen."""

    def start(self, phase: str, total: int | None) -> None:
        """Begins a phase of `total` steps; None when the number is not known."""

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Shows that `done` steps of the phase are finished in all, beside `fields` such as `reward=0.4`."""

    def finish(self, phase: str) -> None:
        """Ends the phase, however it ended; its last state stays on the screen. Idempotent."""

    def drop(self, phase: str) -> None:
        """Ends the phase and removes it from the screen. Idempotent."""

    def episode(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> None:
        """Receives an attempt once it is on disk; `facts` are the fields that its record has beside its own."""


class NullReporter(Reporter):
    """Shows nothing: for tests and for `--json` and `--quiet`."""
