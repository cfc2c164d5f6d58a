"""Entry of the server process.

Reads HOST, PORT, FINQA_SNAPSHOT (folder), FINQA_MAX_STEPS (50), FINQA_SESSION_TIMEOUT (seconds, 1800) and, when the
socket is inherited from the process that started this one, FINQA_LISTEN_FD.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)

MAX_FRAME_BYTES = 2**20
EX_CONFIG = 78
EX_DATAERR = 65


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serves until it is told to stop. Returns the exit status."""
    try:
        max_steps = _positive(environment, "FINQA_MAX_STEPS", 50)
        session_timeout_s = _positive(environment, "FINQA_SESSION_TIMEOUT", 1800.0)
        port = _positive(environment, "PORT", 8000)
        folder = Path(environment["FINQA_SNAPSHOT"])
    except (KeyError, ValueError) as error:
        print(f"bad environment variable: {error}", file=sys.stderr)
        return EX_CONFIG
    from finqa_plugins.openenv_finqa.server.service import ToolService
    from finqa_plugins.openenv_finqa.server.snapshot import Snapshot, SnapshotError

    try:
        service = ToolService(Snapshot(folder))
    except SnapshotError as error:
        print(error, file=sys.stderr)
        return EX_DATAERR
    import uvicorn

    from finqa_plugins.openenv_finqa.server.app import build_app

    config = uvicorn.Config(
        build_app(service, max_steps=max_steps, session_timeout_s=session_timeout_s),
        host=environment.get("HOST", "127.0.0.1"),
        port=port,
        log_level="warning",
        access_log=False,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=60.0,
        ws_ping_timeout=600.0,  # a client whose loop is busy generating is not gone
        timeout_graceful_shutdown=1,
        backlog=2048,
    )
    inherited = environment.get("FINQA_LISTEN_FD")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(inherited))] if inherited else None)
    return 0


def _positive(environment: Mapping[str, str], name: str, default: Number) -> Number:
    value = type(default)(environment.get(name, default))
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
