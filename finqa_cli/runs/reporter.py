"""Display of a command's progress to the user. Results are return values, not progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.types import Trajectory


class Reporter:
    """Base class of all reporters, which shows nothing. Calls never block for long and never raise.

    Phases have names, and several may run at once.

    Attributes:
        live: The display is overwritten in place, so that an update every second does not fill the screen.
    """

    live: bool = False

    def line(self, text: str) -> None:
        """Show one sentence that stays on the screen."""

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        """Begin a phase.

        Args:
            phase: Name of the phase.
            total: Number of its steps; None: it is not known.
            own_lines: The phase prints a line about each step, so a display that is not live shows nothing else of it.
        """

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Show that `done` steps of the phase are finished in all, with `fields` such as `reward=0.4`."""

    def finish(self, phase: str) -> None:
        """End the phase, also after an error; its last state stays on the screen. Idempotent."""

    def drop(self, phase: str) -> None:
        """End the phase and remove it from the screen. Idempotent."""

    def episode(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> None:
        """Receive an attempt that is on disk; `facts` are the fields that were added to its record."""


class NullReporter(Reporter):
    """Shows nothing, for tests and for `--json` and `--quiet`."""
