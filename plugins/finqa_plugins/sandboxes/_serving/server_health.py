"""Checks whether a server on this machine's loopback answers, and waits for its first answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from finqa_cli.errors import FinqaError, SandboxError

HOST = "127.0.0.1"
POLL_S = 0.02
HEALTH_TIMEOUT_S = 10.0
FIRST_ANSWER_TIMEOUT_S = 1.0
"""Seconds for one answer while a server starts: it may accept a connection before it can serve it."""


async def wait_until_healthy(
    server: str,
    timeout_s: float,
    *,
    healthy: Callable[[float], Awaitable[bool]],
    ended: Callable[[], Awaitable[FinqaError | None]],
    last_output: Callable[[], Awaitable[str]],
) -> None:
    """Wait until a server is healthy.

    Args:
        server: Name of the server in messages.
        timeout_s: Seconds until the server must be healthy.
        healthy: Returns whether the server answers within a number of seconds.
        ended: Returns the error to raise once the server has ended; None while it runs.
        last_output: Returns the end of the server's output, in a sentence.

    Raises:
        FinqaError: The server ended, see `ended`.
        SandboxError: It took too long; the message ends with its last output.
    """
    deadline = time.monotonic() + timeout_s
    while not await healthy(FIRST_ANSWER_TIMEOUT_S):
        if (error := await ended()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise SandboxError(f"The server {server} was not ready in {timeout_s:g} s. {await last_output()}")
        await asyncio.sleep(POLL_S)


async def answers(port: int, path: str, timeout_s: float) -> bool:
    """Return whether a GET of the path on this machine's loopback is answered with status 200 in time. Never raises."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.startswith(b"HTTP/") and status.split()[1:2] == [b"200"]


def output_sentence(text: str) -> str:
    """The end of a server's output, as the end of a message."""
    text = text.strip()
    return f"Its last output:\n{text[-2000:]}" if text else "It wrote nothing."
