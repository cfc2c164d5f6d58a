"""A chat engine that plays the generated tasks as an analyst would: find the table, query it, submit the answer."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, ChatRequest, Message, ToolCall
from finqa_plugins.engines.scripted.scripted_sql import (
    Habits,
    Intent,
    TableInfo,
    find_labels,
    guess_label,
    parse_info,
    parse_question,
    parse_tables,
    rank_tables,
    write_query,
)

_MAX_TABLES = 3
_MAX_TURNS = 6
UNKNOWN = "unknown"


class ScriptedConfig(BaseModel):
    """Options of the scripted expert: how often it is careless."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unquoted_years: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Probability per episode that all year columns are left unquoted"
    )
    undivided_percentages: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Probability per episode that growth rates and margins are computed times 100",
    )


class ScriptedEngine(ChatEngine):
    """An expert without state: each turn depends on the messages, the habits on the run's and the request's seed."""

    def __init__(self, config: ScriptedConfig | None, context: EngineContext) -> None:
        self._config = config or ScriptedConfig()
        self._seed = context.seed
        self._demonstrate = context.demonstrate

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """The next step of the environment's gold solution if it has one, else the analyst's; its seventh step submits.

        Raises:
            ConfigError: The environment has no solution, nor the tools that the analyst uses.
        """
        if self._demonstrate is not None:
            turn = self._demonstrate(request.task, request.messages)
            if turn is not None:
                return turn
        if not any(tool.name == "submit_answer" for tool in request.tools):
            asked = next((message.content for message in request.messages if message.role == "user"), "")
            raise ConfigError(
                f"The scripted engine plays gold solutions, but the data has none for this task: {asked[:80]!r}.",
                remedy="give the task its solution (in a file of your own: expert()), or play "
                "with --engine random, human, openai or transformers",
            )
        call = next_call(request.messages, self._habits(request.sampling.seed))
        return AssistantTurn.calling(call)

    def _habits(self, seed: int) -> Habits:
        rng = random.Random(f"scripted:{self._seed}:{seed}")
        return Habits(
            unquoted_years=rng.random() < self._config.unquoted_years,
            undivided_percentages=rng.random() < self._config.undivided_percentages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One call of the expert and the reply that came for it."""

    call: ToolCall
    reply: str

    def argument(self, name: str) -> str:
        return str(self.call.arguments.get(name, ""))


def next_call(messages: Sequence[Message], habits: Habits) -> ToolCall:
    """What the expert does next, as a function of the conversation alone."""
    company, question = _read_prompt(messages)
    steps = list(_steps(messages))
    if not steps:
        return ToolCall(name="get_descriptions", arguments={"company_name": company})
    if _calls(steps, "sql_query") or len(steps) >= _MAX_TURNS:
        return _submit(_queried_value(steps[-1]))
    intent = parse_question(question)
    infos = {step.argument("table_name"): parse_info(step.reply) for step in _calls(steps, "get_table_info")}
    if query := _exact_query(company, intent, infos, habits):
        return query
    listed = [tables for step in _calls(steps, "get_descriptions") if (tables := parse_tables(step.reply))]
    ranked = rank_tables(listed[-1], intent.phrases, intent.years) if listed else []
    untried = [table for table in ranked if table not in infos]
    if untried and len(infos) < _MAX_TABLES:
        return ToolCall(name="get_table_info", arguments={"company_name": company, "table_name": untried[0]})
    return _guessed_query(company, question, intent, infos)


def _exact_query(company: str, intent: Intent, infos: dict[str, TableInfo | None], habits: Habits) -> ToolCall | None:
    for table, info in infos.items():
        labels = find_labels(info, intent.phrases) if info else None
        query = write_query(intent, table, info, labels, habits) if info and labels else None
        if query:
            return _sql(company, table, query)
    return None


def _guessed_query(company: str, question: str, intent: Intent, infos: dict[str, TableInfo | None]) -> ToolCall:
    """Queries the row that shares most words with the question, in a table with the years; submits if there is none."""
    best: tuple[float, ToolCall] | None = None
    for table, info in infos.items():
        label, score = guess_label(info, question) if info else ("", 0.0)
        query = write_query(intent, table, info, (label,), Habits()) if info and score > 0 else None
        if query and (best is None or score > best[0]):
            best = score, _sql(company, table, query)
    return best[1] if best else _submit(None)


def _read_prompt(messages: Sequence[Message]) -> tuple[str, str]:
    text = next((message.content for message in reversed(messages) if message.role == "user"), "")
    company = re.search(r"^\s*company:\s*(.+?)\s*$", text, re.IGNORECASE | re.MULTILINE)
    question = re.search(r"^\s*question:\s*(.+)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    return company.group(1) if company else "", question.group(1).strip() if question else text.strip()


def _steps(messages: Sequence[Message]) -> Iterator[_Step]:
    """Calls with their replies; a call whose reply is missing counts with an empty one."""
    pending: ToolCall | None = None
    for message in messages:
        if message.role == "assistant":
            if pending:
                yield _Step(call=pending, reply="")
            pending = message.tool_call
        elif message.role == "tool" and pending:
            yield _Step(call=pending, reply=message.content)
            pending = None
    if pending:
        yield _Step(call=pending, reply="")


def _calls(steps: Sequence[_Step], name: str) -> list[_Step]:
    return [step for step in steps if step.call.name == name]


def _queried_value(step: _Step) -> str | None:
    """The first cell of a query's reply, written as the reply writes it; None when there is none."""
    if step.call.name != "sql_query":
        return None
    try:
        rows = json.loads(step.reply, parse_float=str, parse_int=str)
        value = next(iter(rows[0].values()))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, StopIteration):
        return None
    return value.strip() if isinstance(value, str) and value.strip() else None


def _sql(company: str, table: str, query: str) -> ToolCall:
    return ToolCall(name="sql_query", arguments={"company_name": company, "table_name": table, "query": query})


def _submit(value: str | None) -> ToolCall:
    return ToolCall(name="submit_answer", arguments={"answer": value if value is not None else UNKNOWN})
