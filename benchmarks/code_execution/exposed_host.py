"""A machine with secrets in every place that the escapes look at, all of them for anyone on it to read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

PORTS = 10
"""How many ports are tried until one is free at both addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is outside and worth reaching.

    Attributes:
        canary: A word in the environment, a file and the command line of a process of the host.
        address: One of the machine's own addresses.
        port: Where the host listens, on every address.
        name: Of an abstract socket that the host listens on, without its leading zero byte.
        files: Answers, below a data home and below the working directory.
    """

    canary: str
    address: str
    port: int
    name: str
    files: tuple[str, ...]


@contextlib.asynccontextmanager
async def exposed_host() -> AsyncIterator[Host]:
    """A machine with secrets in every place that the escapes look at, all of them readable by anyone on it."""
    canary = f"canary-{secrets.token_hex(8)}"
    name = f"finqa-{secrets.token_hex(8)}"
    folders = [
        Path(tempfile.mkdtemp(prefix="finqa-home-")),
        Path(tempfile.mkdtemp(prefix="finqa-work-", dir=Path.cwd())),
    ]
    argv = [sys.executable, "-I", "-c", "import time; time.sleep(600)", canary]
    async with contextlib.AsyncExitStack() as stack:
        for folder in folders:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(0o755)
            (folder / "answers.json").write_text(f'{{"answer": "{canary}"}}', encoding="utf-8")
        os.environ["FINQA_ESCAPE_CANARY"] = canary
        stack.callback(os.environ.pop, "FINQA_ESCAPE_CANARY")
        process = await asyncio.create_subprocess_exec(*argv, env={"ESCAPE_CANARY": canary})
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        address = _own_address()
        servers = await _listen(address)
        for server in servers:
            stack.callback(server.close)
        port = servers[0].sockets[0].getsockname()[1]
        abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        abstract.bind("\0" + name)
        local = await asyncio.start_unix_server(_hang_up, sock=abstract)
        stack.callback(local.close)
        yield Host(
            canary=canary,
            address=address,
            port=port,
            name=name,
            files=tuple(str((folder / "answers.json").resolve()) for folder in folders),
        )


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def _own_address() -> str:
    """Of the interface that traffic leaves by; loopback where there is none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))
            return str(out.getsockname()[0])
        except OSError:
            return "127.0.0.1"


async def _listen(address: str) -> list[asyncio.Server]:
    """Servers at the address and, where that is another, on loopback, both at one port."""
    for attempt in range(PORTS):
        server = await asyncio.start_server(_hang_up, address, 0)
        if address == "127.0.0.1":
            return [server]
        try:
            port = server.sockets[0].getsockname()[1]
            return [server, await asyncio.start_server(_hang_up, "127.0.0.1", port)]
        except OSError:  # another process has this port on loopback
            server.close()
            if attempt == PORTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")
