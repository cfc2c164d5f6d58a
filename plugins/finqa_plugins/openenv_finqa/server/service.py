"""The tools without any protocol: names in, text out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from finqa_plugins.openenv_finqa.server.snapshot import Snapshot
from finqa_plugins.openenv_finqa.server.sql import QueryRunner, refusal

COMPANIES_SHOWN = 30
SQL_THREADS = 4


class ToolService:
    """What all sessions of a process share: the data, the query runner and its threads."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._runner = QueryRunner(snapshot)
        self._threads = ThreadPoolExecutor(SQL_THREADS, thread_name_prefix="sql")

    async def call(self, tool: str, arguments: Mapping[str, str]) -> str:
        """The reply of one of the three reading tools. Mistakes are texts that begin with `Error`."""
        company = arguments["company_name"]
        if tool == "get_descriptions":
            return self._descriptions(company)
        table = _without_suffix(arguments["table_name"])
        if tool == "get_table_info":
            return self._table_info(company, table)
        if reason := refusal(arguments["query"]):
            return reason
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._runner.run, company, table, arguments["query"])

    def _descriptions(self, company: str) -> str:
        tables = self.snapshot.tables(company)
        return self._unknown_company(company) if tables is None else json.dumps(list(tables))

    def _table_info(self, company: str, table: str) -> str:
        tables = self.snapshot.tables(company)
        if tables is None:
            return self._unknown_company(company)
        if table not in tables:
            return f"Error: Table '{table}' not found for company '{company}'"
        return tables[table][1]

    def _unknown_company(self, company: str) -> str:
        names = list(self.snapshot.companies())
        if len(names) > COMPANIES_SHOWN:
            names = [*names[:COMPANIES_SHOWN], f"... {len(names)} in all"]
        return f"Error: '{company}' not found. Available companies: {names}"


def _without_suffix(table: str) -> str:
    return table.replace(".txt", "").replace(".json", "")
