"""A session without any protocol: its options, its tools, its episodes and their verdicts.

No reply and no state contains the truth.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from finqa_cli.grading import PROFILES, Profile, Verdict, grade, versioned
from finqa_plugins.environments.openenv_finqa.finqa_tools import (
    ASK_AGAIN,
    ASKED_AGAIN,
    FORM,
    SUBMIT,
    TOOLS,
    InvalidArgumentsError,
    served_tools,
    validated,
)
from finqa_plugins.environments.openenv_finqa.server import hints
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import Pandas, SnapshotQuestion, SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import MAX_BYTES, NO_STAR, refusal
from finqa_plugins.environments.openenv_finqa.server.sql_service import SqlService, SqlSession

COMPANIES_SHOWN = 30
LONGEST_REPLY = 16_384

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the server. The defaults are those of OpenEnv's own FinQA environment.

    Attributes:
        max_steps: Calls after which an episode ends without reward.
        session_timeout_s: Seconds after which an idle session expires.
        hints: Whether replies to common mistakes end with a line about what to do instead.
        joins: Whether a query may read all tables of its company, not only the one that the call names.
        grader: Profile of the grader.
        asked_again: How often an unreadable answer is returned, under a grader that asks again.
        pandas: Major version of pandas whose output get_table_info reproduces.
    """

    max_steps: int = 50
    session_timeout_s: float = 1800.0
    hints: bool = False
    joins: bool = False
    grader: Profile = "openenv"
    asked_again: int = 2
    pandas: Pandas = 2

    @classmethod
    def from_variables(cls, environment: Mapping[str, str]) -> ServerOptions:
        """Read FINQA_MAX_STEPS, FINQA_SESSION_TIMEOUT, FINQA_HINTS, FINQA_JOINS, FINQA_GRADER, FINQA_ASKED_AGAIN
        and FINQA_PANDAS.

        Raises:
            ValueError: A variable is malformed; the message names it.
        """
        default = cls()
        return cls(
            max_steps=positive(environment, "FINQA_MAX_STEPS", default.max_steps),
            session_timeout_s=positive(environment, "FINQA_SESSION_TIMEOUT", default.session_timeout_s),
            hints=_choice(environment, "FINQA_HINTS", ("0", "1")) == "1",
            joins=_choice(environment, "FINQA_JOINS", ("0", "1")) == "1",
            grader=versioned(cast(Profile, _choice(environment, "FINQA_GRADER", PROFILES))),
            asked_again=whole(environment, "FINQA_ASKED_AGAIN", default.asked_again),
            pandas=3 if _choice(environment, "FINQA_PANDAS", ("2", "3")) == "3" else 2,
        )

    def described(self) -> str:
        """Return how the task differs from OpenEnv's own environment; empty if it does not."""
        deviations = {
            "hints": self.hints,
            "joins within a company": self.joins,
            f"{self.grader} grader": self.grader != "openenv",
        }
        return ", ".join(name for name, given in deviations.items() if given)


def positive(environment: Mapping[str, str], name: str, default: Number) -> Number:
    """Read a variable with a finite number above 0, of the type of the default.

    Raises:
        ValueError: The variable has another value.
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


def whole(environment: Mapping[str, str], name: str, default: int) -> int:
    """Read a variable with a whole number, 0 at least.

    Raises:
        ValueError: The variable has another value.
    """
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name} must be a whole number, 0 or more, got {text[:64]!r}")
    return int(text)


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = environment.get(name, choices[0])
    if value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ValueError(f"{name} must be {known}, got {value[:64]!r}")
    return value


class RefusedCallError(Exception):
    """A call that is refused; `kind` is one of OpenEnv's tool error types."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Episode:
    """The state of a session. Not safe for concurrent calls: a session is strictly serial.

    Attributes:
        tools: The tools by name, as the session lists them.
    """

    def __init__(self, service: ToolService, options: ServerOptions) -> None:
        self._service = service
        self._max_steps = options.max_steps
        self._grader = options.grader
        self.tools = served_tools(options.grader)
        self._returns = options.asked_again if options.grader in ASK_AGAIN else 0
        self._returned = 0
        self._question: SnapshotQuestion | None = None
        self._verdict: Verdict | None = None
        self._expired = False
        self._episode_id = ""
        self._steps = 0
        self._sql = SqlSession()

    @property
    def queued_s(self) -> float:
        """Seconds that the latest call waited in a queue of the server."""
        return self._sql.queued_s

    @property
    def verdict(self) -> Verdict | None:
        """Reward and reason after the end of the episode; None before."""
        return self._verdict

    def reset(self, question: SnapshotQuestion, episode_id: str | None) -> None:
        """Begin an episode of this question.

        Raises:
            RuntimeError: The session has expired.
        """
        if self._expired:
            raise RuntimeError("The session has expired; connect again.")
        self._question = question
        self._verdict = None
        self._steps = self._returned = 0
        self._episode_id = episode_id or str(uuid.uuid4())

    def expire(self) -> None:
        """End the session; every later call raises RuntimeError."""
        self._expired = True

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its reply. If the call ended the episode, `verdict` is set afterwards.

        Raises:
            RefusedCallError: The tool is unknown, the arguments are invalid, or the episode is over or not started.
            RuntimeError: The session has expired.
        """
        if self._expired:
            raise RuntimeError("The session has expired; connect again.")
        if self._verdict is not None:
            raise RefusedCallError("execution_error", "The episode is over; reset begins another one.")
        self._steps += 1
        self._sql.queued_s = 0.0
        try:
            return await self._carry_out(tool, arguments)
        finally:
            if self._steps >= self._max_steps and self._verdict is None and self._question is not None:
                self._verdict = Verdict(0.0, f"No answer submitted within {self._max_steps} steps.")

    async def _carry_out(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool = TOOLS.get(name)
        if tool is None:
            raise RefusedCallError("tool_not_found", f"Unknown tool: {name[:64]!r}. Tools: {', '.join(TOOLS)}.")
        try:
            texts = validated(tool, arguments)
        except InvalidArgumentsError as error:
            raise RefusedCallError("invalid_args", str(error)) from None
        if name != SUBMIT:
            return await self._service.call(name, texts, self._sql)
        if self._question is None:
            raise RefusedCallError("execution_error", "There is no question yet; reset first.")
        verdict = grade(texts["answer"], self._question.answer, self._grader, self._question.user_query)
        if verdict.again and self._returned < self._returns:
            self._returned += 1
            return f"{ASKED_AGAIN} {verdict.again} Submit exactly one value: {FORM}."
        self._verdict = verdict
        return f"Answer submitted: {texts['answer']}"

    def state(self) -> dict[str, Any]:
        """Return the state for clients: keys as in OpenEnv's server without the truth, and the verdict at the end."""
        known: dict[str, Any] = {"episode_id": self._episode_id or None, "step_count": self._steps}
        question = self._question
        known["current_question"] = question.user_query if question else ""
        known["current_company"] = question.company if question else ""
        known["question_id"] = question.id if question else ""
        known["done"] = self._verdict is not None
        if self._verdict is not None:
            known |= {"reward": self._verdict.reward, "explanation": self._verdict.explanation}
        return known


class ToolService:
    """The tools, with what all sessions of a process share: the data and the processes for queries."""

    def __init__(self, snapshot: SnapshotReader, options: ServerOptions) -> None:
        self.snapshot = snapshot
        self._hints = options.hints
        self._pandas = options.pandas
        self._sql = SqlService(snapshot, joins=options.joins, hints=options.hints)
        grade("0", "0", options.grader)  # imports the rules now, not while sessions wait for the first verdict

    async def call(self, tool: str, arguments: Mapping[str, str], session: SqlSession | None = None) -> str:
        """Return the reply of a tool that reads data, cut at about 16,000 characters. Errors begin with `Error`."""
        reply = await self._reply(tool, arguments, session or SqlSession())
        return reply if len(reply) <= LONGEST_REPLY else f"{reply[:MAX_BYTES]}... (cut: {len(reply)} characters)"

    async def _reply(self, tool: str, arguments: Mapping[str, str], session: SqlSession) -> str:
        company = arguments["company_name"]
        tables = self.snapshot.tables(company)
        if tool != "sql_query" and tables is None:
            return self._unknown_company(company)
        known = tables or {}
        if tool == "get_descriptions":
            return json.dumps(list(known))
        table = _without_suffix(arguments["table_name"])
        if tool == "sql_query":
            return await self._query(company, table, arguments, session)
        if table not in known:
            given = arguments["table_name"]
            return self._hinted(f"Error: Table '{given}' not found for company '{company}'", "tables", table, known)
        return self.snapshot.info(company, table, self._pandas)

    async def _query(self, company: str, table: str, arguments: Mapping[str, str], session: SqlSession) -> str:
        query = arguments["query"]
        if reason := refusal(query):
            image = self.snapshot.image(company, table) if self._hints else None
            if image is None or not image.columns:
                return reason
            return hints.add_hint(reason, hints.NO_STAR if reason == NO_STAR else hints.hint_for_missing_filter(image))
        tables = self.snapshot.tables(company)
        if tables is None or table not in tables:
            reply = f"Error: Table file not found for '{company}/{arguments['table_name']}'"
            if tables is None:
                return self._hinted(reply, "companies", company, self.snapshot.companies())
            return self._hinted(reply, "tables", table, tables)
        return await self._sql.run(session, company, table, query)

    def _unknown_company(self, company: str) -> str:
        names = list(self.snapshot.companies())
        if len(names) > COMPANIES_SHOWN:
            names = [*names[:COMPANIES_SHOWN], f"... {len(names)} in all"]
        reply = f"Error: '{company}' not found. Available companies: {names}"
        return self._hinted(reply, "companies", company, self.snapshot.companies())

    def _hinted(self, reply: str, kind: str, word: str, names: Collection[str]) -> str:
        return hints.add_hint(reply, hints.hint_for_names(kind, word, names)) if self._hints else reply


def _without_suffix(table: str) -> str:
    return table.replace(".txt", "").replace(".json", "")
