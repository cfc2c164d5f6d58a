"""Options of the server, from its environment variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import Pandas

Number = TypeVar("Number", int, float)
Grader = Literal["openenv", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The defaults are what OpenEnv's own FinQA environment does.

    Attributes:
        max_steps: Calls after which an episode ends without reward.
        session_timeout_s: Seconds after which an idle session expires.
        hints: Replies to common mistakes end with a line that says what to do instead.
        joins: A query may read all tables of its company, not only the one that it names.
        grader: Profile of the grader.
        pandas: The pandas of the OpenEnv server whose answers get_table_info gives.
    """

    max_steps: int = 50
    session_timeout_s: float = 1800.0
    hints: bool = False
    joins: bool = False
    grader: Grader = "openenv"
    pandas: Pandas = 2

    @classmethod
    def from_variables(cls, environment: Mapping[str, str]) -> ServerOptions:
        """Read FINQA_MAX_STEPS, FINQA_SESSION_TIMEOUT, FINQA_HINTS, FINQA_JOINS, FINQA_GRADER and FINQA_PANDAS.

        Raises:
            ValueError: One is malformed; the message names it.
        """
        default = cls()
        return cls(
            max_steps=positive(environment, "FINQA_MAX_STEPS", default.max_steps),
            session_timeout_s=positive(environment, "FINQA_SESSION_TIMEOUT", default.session_timeout_s),
            hints=_choice(environment, "FINQA_HINTS", ("0", "1")) == "1",
            joins=_choice(environment, "FINQA_JOINS", ("0", "1")) == "1",
            grader=cast(Grader, _choice(environment, "FINQA_GRADER", get_args(Grader))),
            pandas=3 if _choice(environment, "FINQA_PANDAS", ("2", "3")) == "3" else 2,
        )

    def described(self) -> str:
        """Return what differs from OpenEnv's own environment, or nothing."""
        deviations = {
            "hints": self.hints,
            "joins within a company": self.joins,
            "strict grader": self.grader == "strict",
        }
        return ", ".join(name for name, given in deviations.items() if given)


def positive(environment: Mapping[str, str], name: str, default: Number) -> Number:
    """Read a finite number above 0 of the default's type.

    Raises:
        ValueError: It is something else.
    """
    text = environment.get(name)
    if text is None:
        return default
    try:
        value = type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"{name} must be {kind}, got {text[:64]!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive, got {text[:64]}")
    return value


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = environment.get(name, choices[0])
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(choices)}, got {value[:64]!r}")
    return value
