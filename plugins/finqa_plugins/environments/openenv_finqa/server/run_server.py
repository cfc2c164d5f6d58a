"""Entry of the server process.

Reads HOST, PORT, FINQA_SNAPSHOT (folder), FINQA_SNAPSHOT_NAME and FINQA_SNAPSHOT_DIGEST (what is expected there, both
optional), those of `ServerOptions` and, when the socket is inherited from the process that started this one,
FINQA_LISTEN_FD.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions, ToolService, positive
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotError, SnapshotReader

if TYPE_CHECKING:
    from finqa_plugins.environments.openenv_finqa.server.server_app import Application

MAX_FRAME_BYTES = 2**20
LAST_PORT = 65535
EX_CONFIG = 78
EX_DATAERR = 65


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serve until the process is stopped; return the exit status."""
    try:
        port = positive(environment, "PORT", 8000)
        if port > LAST_PORT:
            raise ValueError(f"PORT must be at most {LAST_PORT}, got {port}")
        sockets = _inherited(environment)
        app = application(environment)
    except ValueError as error:
        print(f"bad environment variable: {error}", file=sys.stderr)
        return EX_CONFIG
    except SnapshotError as error:
        print(error, file=sys.stderr)
        return EX_DATAERR
    import uvicorn

    config = uvicorn.Config(
        app,
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
    uvicorn.Server(config).run(sockets=sockets)
    return 0


def application(environment: Mapping[str, str]) -> Application:
    """Return the ASGI application that these variables describe.

    Raises:
        ValueError: A variable is missing or malformed.
        SnapshotError: The folder is no readable snapshot.
    """
    options = ServerOptions.from_variables(environment)
    if not environment.get("FINQA_SNAPSHOT"):
        raise ValueError("FINQA_SNAPSHOT, the folder of a snapshot, is missing")
    snapshot = SnapshotReader(
        Path(environment["FINQA_SNAPSHOT"]),
        name=environment.get("FINQA_SNAPSHOT_NAME", ""),
        digest=environment.get("FINQA_SNAPSHOT_DIGEST", ""),
    )
    # Imported after the checks: openenv-core takes seconds, which a bad variable or snapshot need not wait for.
    from finqa_plugins.environments.openenv_finqa.server.server_app import build_app

    return build_app(ToolService(snapshot, options), options)


def _inherited(environment: Mapping[str, str]) -> list[socket.socket] | None:
    text = environment.get("FINQA_LISTEN_FD")
    if text is None:
        return None
    try:
        return [socket.socket(fileno=int(text))]
    except (ValueError, OSError) as error:
        raise ValueError(f"FINQA_LISTEN_FD is no open socket ({error}), got {text[:64]!r}") from None


if __name__ == "__main__":
    sys.exit(main())
