"""Circuit breakers: the run stops when too many sandboxes and sessions fail, or every attempt fails in the engine."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from finqa_cli.errors import CodeFault, FailingCodeError, FinqaError, ServiceUnavailableError

FEWEST_OUTCOMES = 20
"""Outcomes that a breaker needs before it may open."""

FEWEST_QUESTIONS = 3
"""Questions at which the user's code has to fail before the run ends for it."""


class _Fault(NamedTuple):
    message: str
    remedy: str


class Breaker:
    """A circuit breaker over the latest outcomes of starts and sessions. Pure; once open it stays open.

    The window has room for two outcomes per sandbox, and the breaker judges when there is one per sandbox. The caller
    counts a process that dies as one fault, however many sandboxes it serves and sessions it cuts. So if a fifth of all
    sandboxes die at once, the share of faults stays near a fifth.

    Attributes:
        error: Share, counts, the first error of the window and its remedy; None while the breaker is closed.
    """

    def __init__(self, size: int, limit: float) -> None:
        """Judge the outcomes of `size` sandboxes; `limit` is the largest share of faults, 0 to 1, that stays closed."""
        self._window: deque[_Fault | None] = deque(maxlen=max(FEWEST_OUTCOMES, 2 * size))
        self._enough = max(FEWEST_OUTCOMES, size)
        self._limit = limit
        self._faults = 0
        self.error: ServiceUnavailableError | None = None

    def fine(self) -> None:
        """Count a start or a session that succeeded."""
        self._add(None)

    def fault(self, error: FinqaError) -> None:
        """Count a start that failed, a session that ended in a fault of its sandbox, or a lost sandbox."""
        # Keep texts only: exceptions would keep their frames alive, and with these whole trajectories.
        self._add(_Fault(error.message, error.remedy))

    def _add(self, outcome: _Fault | None) -> None:
        if len(self._window) == self._window.maxlen and self._window[0] is not None:
            self._faults -= 1  # the append drops it from the window
        self._window.append(outcome)
        if outcome is not None:
            self._faults += 1
        outcomes = len(self._window)
        if self.error is None and outcomes >= self._enough and self._faults > self._limit * outcomes:
            self.error = self._opened()

    def _opened(self) -> ServiceUnavailableError:
        first = next(outcome for outcome in self._window if outcome is not None)
        outcomes = len(self._window)
        return ServiceUnavailableError(
            f"{self._faults} of the latest {outcomes} starts and sessions of sandboxes failed "
            f"({self._faults / outcomes:.0%}; pool.breaker_share is {self._limit:.0%}). "
            f"The first error: {first.message}",
            remedy=first.remedy or "finqa doctor",
        )


class EngineBreaker:
    """A circuit breaker over an engine: opens after many faults in a row without a turn. Pure; stays open.

    An engine that has stopped fails each episode only after its own retries, and each attempt is played again. The
    breaker opens after twice as many faults as there are episodes at once: every episode has then failed twice.

    Attributes:
        error: The count, the last error and its remedy; None while the breaker is closed.
    """

    def __init__(self, episodes: int) -> None:
        """Judge an engine that serves at most `episodes` episodes at once."""
        self._most = max(FEWEST_OUTCOMES, 2 * episodes)
        self._faults = 0
        self.error: ServiceUnavailableError | None = None

    def fine(self) -> None:
        """Count a turn that the engine generated."""
        self._faults = 0

    def fault(self, error: FinqaError) -> None:
        """Count an attempt that ended in a fault of the engine."""
        self._faults += 1
        if self.error is None and self._faults >= self._most:
            self.error = ServiceUnavailableError(
                f"The latest {self._faults} attempts in a row failed because of the engine. "
                f"The last error: {error.message}",
                remedy=error.remedy or "finqa doctor, with the same --engine and options",
            )


class CodeBreaker:
    """A circuit breaker over code of the user: opens after a row of failed attempts without a graded one between.

    A repeated attempt counts once: the same code fails at the same place again. Code may also fail at one question
    only, whose attempts are often played at the same time, so the row must be of several questions. Pure; stays open.

    Attributes:
        error: The counts, the last error and its remedy; None while the breaker is closed.
    """

    def __init__(self) -> None:
        self._attempts: set[str] = set()
        self._questions: set[str] = set()
        self.error: FailingCodeError | None = None

    def fine(self) -> None:
        """Count an attempt that was graded."""
        self._attempts.clear()
        self._questions.clear()

    def fault(self, error: CodeFault, attempt: str, question: str) -> None:
        """Count an attempt at a question in which a call failed, also one that will be repeated."""
        self._attempts.add(attempt)
        self._questions.add(question)
        enough = len(self._attempts) >= FEWEST_OUTCOMES and len(self._questions) >= FEWEST_QUESTIONS
        if self.error is None and enough:
            self.error = FailingCodeError(
                f"{len(self._attempts)} attempts in a row failed, at {len(self._questions)} questions, and none was "
                f"graded between them. The last error: {error.message}",
                remedy=error.remedy or "correct that line",
            )
