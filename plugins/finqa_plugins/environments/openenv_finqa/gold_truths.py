"""Gold answers and gold SQL of a snapshot, and the turns of an expert that uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.types import AssistantTurn, Snapshot, Task, ToolCall, rebuild_command
from finqa_plugins.environments.openenv_finqa.finqa_tools import SUBMIT

TRUTH_FILE = "truth.jsonl"
GOLD = "gold"
"""The mark of data whose questions are demonstrated by their gold SQL, as `finqa data import tables` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The solution of one question; without gold SQL, `sql` and `tables` are empty."""

    answer: str
    sql: str
    tables: tuple[str, ...]


class Truths:
    """The gold answers of a snapshot. They are read when the first one is needed, and never sent to the server."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, task: Task) -> str:
        """Return the gold answer of a task.

        Raises:
            DataError: The snapshot has none for the task, or its file is damaged.
        """
        if task.id not in self._rows:
            raise self._damaged(f"no truth for {task.id!r}")
        return self._rows[task.id].answer

    def gold(self, task: Task) -> Truth | None:
        """Return the solution of a task, or None if there is no gold SQL for it."""
        truth = self._rows.get(task.id)
        return truth if truth is not None and truth.sql and truth.tables else None

    def tables(self, task: Task) -> tuple[str, ...]:
        """Return the tables with the answer to a task; empty if they are not known."""
        truth = self._rows.get(task.id)
        return truth.tables if truth is not None else ()

    @property
    def gold_count(self) -> int:
        """Number of questions with gold SQL."""
        return sum(bool(truth.sql and truth.tables) for truth in self._rows.values())

    @cached_property
    def _rows(self) -> dict[str, Truth]:
        path = self._snapshot.path / TRUTH_FILE
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
            return {row["id"]: _read(row) for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"{path}: {error!r}") from error

    def _damaged(self, reason: str) -> DataError:
        name = self._snapshot.name
        return DataError(f"Snapshot {name!r} is damaged: {reason}.", remedy=rebuild_command(name))


def _read(row: Mapping[str, Any]) -> Truth:
    named = str(row.get("table_name", ""))
    tables = json.loads(named) if named.startswith("[") else [named] if named else []
    return Truth(answer=str(row["answer"]), sql=str(row.get("gold_sql", "")), tables=tuple(map(str, tables)))


def gold_turn(task: Task, truth: Truth, turn: int) -> AssistantTurn:
    """Return a turn of the gold solution, counted from 0: list tables, describe each queried table, query, submit."""
    company = {"company_name": task.cluster}
    calls = [
        ToolCall(name="get_descriptions", arguments=company),
        *(ToolCall(name="get_table_info", arguments={**company, "table_name": name}) for name in truth.tables),
        ToolCall(name="sql_query", arguments={**company, "table_name": truth.tables[0], "query": truth.sql}),
        ToolCall(name=SUBMIT, arguments={"answer": truth.answer}),
    ]
    return AssistantTurn.calling(calls[min(turn, len(calls) - 1)])
