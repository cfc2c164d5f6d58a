"""What FastMCP costs a session and a call; run by `benchmarks.environment` in an environment that holds fastmcp.

Prints JSON: milliseconds to make a server of four tools with a connected client, MiB that it keeps, and milliseconds of
a call that does nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from importlib.metadata import version
from pathlib import Path

from fastmcp import Client, FastMCP

SESSIONS = 100
CALLS = 500


def nothing(company_name: str, table_name: str) -> str:
    """Do nothing."""
    return "[]"


def resident_mib() -> float:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 2**20


async def opened() -> Client:
    """A session as openenv-core keeps one open for each websocket."""
    server = FastMCP("finqa")
    for name in ("get_descriptions", "get_table_info", "sql_query", "submit_answer"):
        server.tool(nothing, name=name)
    client = Client(server)
    await client.__aenter__()
    return client


async def main() -> None:
    """Measures and prints."""
    clients = [await opened()]
    before, began = resident_mib(), time.perf_counter()
    clients += [await opened() for _ in range(SESSIONS)]
    session_ms = (time.perf_counter() - began) / SESSIONS * 1000
    session_mib = (resident_mib() - before) / SESSIONS
    arguments = {"company_name": "a", "table_name": "b"}
    await clients[0].call_tool("sql_query", arguments)
    began = time.perf_counter()
    for _ in range(CALLS):
        await clients[0].call_tool("sql_query", arguments)
    call_ms = (time.perf_counter() - began) / CALLS * 1000
    for client in clients:
        await client.__aexit__(None, None, None)
    figures = {"session_ms": session_ms, "session_mib": session_mib, "call_ms": call_ms}
    print(json.dumps({"fastmcp": version("fastmcp"), **figures}))


if __name__ == "__main__":
    asyncio.run(main())
