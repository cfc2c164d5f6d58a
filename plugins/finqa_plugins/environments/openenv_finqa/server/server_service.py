"""The tools without any protocol: names in, text out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from finqa_plugins.environments.openenv_finqa.server import hints
from finqa_plugins.environments.openenv_finqa.server.server_options import ServerOptions
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import Snapshot
from finqa_plugins.environments.openenv_finqa.server.sql_execution import MAX_BYTES, NO_STAR, QueryRunner, refusal

COMPANIES_SHOWN = 30
SQL_THREADS = 4
LONGEST_REPLY = 16_384


class ToolService:
    """What all sessions of a process share: the data, the query runner and its threads."""

    def __init__(self, snapshot: Snapshot, options: ServerOptions) -> None:
        self.snapshot = snapshot
        self._hints = options.hints
        self._runner = QueryRunner(snapshot, joins=options.joins, hints=options.hints)
        self._threads = ThreadPoolExecutor(SQL_THREADS, thread_name_prefix="sql")

    async def call(self, tool: str, arguments: Mapping[str, str]) -> str:
        """The reply of one of the three reading tools, of 16 kB at most. Mistakes are texts that begin with `Error`."""
        reply = await self._reply(tool, arguments)
        return reply if len(reply) <= LONGEST_REPLY else f"{reply[:MAX_BYTES]}... (cut: {len(reply)} characters)"

    async def _reply(self, tool: str, arguments: Mapping[str, str]) -> str:
        company = arguments["company_name"]
        tables = self.snapshot.tables(company)
        if tool != "sql_query" and tables is None:
            return self._unknown_company(company)
        known = tables or {}
        if tool == "get_descriptions":
            return json.dumps(list(known))
        table = _without_suffix(arguments["table_name"])
        if tool == "sql_query":
            return await self._query(company, table, arguments)
        if table not in known:
            given = arguments["table_name"]
            return self._hinted(f"Error: Table '{given}' not found for company '{company}'", "tables", table, known)
        return known[table][1]

    async def _query(self, company: str, table: str, arguments: Mapping[str, str]) -> str:
        query = arguments["query"]
        if reason := refusal(query):
            image = self.snapshot.image(company, table) if self._hints else None
            if image is None:
                return reason
            return hints.added(reason, hints.NO_STAR if reason == NO_STAR else hints.of_missing_filter(image))
        tables = self.snapshot.tables(company)
        if tables is None or table not in tables:
            reply = f"Error: Table file not found for '{company}/{arguments['table_name']}'"
            if tables is None:
                return self._hinted(reply, "companies", company, self.snapshot.companies())
            return self._hinted(reply, "tables", table, tables)
        quick = self._runner.run_quickly(company, table, query)
        if quick is not None:
            return quick
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._runner.run, company, table, query)

    def _unknown_company(self, company: str) -> str:
        names = list(self.snapshot.companies())
        if len(names) > COMPANIES_SHOWN:
            names = [*names[:COMPANIES_SHOWN], f"... {len(names)} in all"]
        reply = f"Error: '{company}' not found. Available companies: {names}"
        return self._hinted(reply, "companies", company, self.snapshot.companies())

    def _hinted(self, reply: str, kind: str, word: str, names: Collection[str]) -> str:
        return hints.added(reply, hints.of_names(kind, word, names)) if self._hints else reply


def _without_suffix(table: str) -> str:
    return table.replace(".txt", "").replace(".json", "")
