"""Entry point of the server process.

Reads HOST, PORT, FINQA_SNAPSHOT (folder), FINQA_SNAPSHOT_NAME and FINQA_SNAPSHOT_DIGEST (expected there, both
optional), those of `ServerOptions` and `ServerLimits` and, if the socket is inherited from the process that started
this one, FINQA_LISTEN_FD. `docs/server.md` lists them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from finqa_plugins.environments._openenv.installed import REINSTALL, overwritten
from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions, ToolService, positive
from finqa_plugins.environments.openenv_finqa.server.server_limits import MAX_BODY_BYTES, ServerLimits
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import Application
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotError, SnapshotReader

MOST_OPEN_FILES = 65_536
LAST_PORT = 65535
EX_CONFIG = 78
EX_DATAERR = 65


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serve until the process is stopped; return the exit status."""
    try:
        port = positive(environment, "PORT", 8000)
        if port > LAST_PORT:
            raise ValueError(f"PORT must be at most {LAST_PORT}, got {port}")
        host = environment.get("HOST", "127.0.0.1")
        sockets = _inherited(environment)
        limits = ServerLimits.from_variables(environment)
        peers = Peers(limits)
        app = application(environment, peers)
        import uvicorn

        from finqa_plugins.environments.openenv_finqa.server.uvicorn_protocols import limited_protocols

        if not limits.serves(address := sockets[0].getsockname()[0] if sockets else host):
            raise ValueError(
                f"HOST {address[:64]!r} can be reached from other machines, so FINQA_TOKEN must be set: "
                "export FINQA_TOKEN=$(openssl rand -hex 32), or FINQA_REQUIRE_TOKEN=0 to serve without one"
            )
    except ValueError as error:
        print(f"bad environment variable: {error}", file=sys.stderr)
        return EX_CONFIG
    except SnapshotError as error:
        print(error, file=sys.stderr)
        return EX_DATAERR
    except ImportError as error:
        print(f"The server cannot use OpenEnv: {error} To install it again: {REINSTALL}", file=sys.stderr)
        return EX_CONFIG
    _raise_file_limit()
    http, websockets = limited_protocols(limits, peers)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=http,
        ws=websockets,
        log_level="warning",
        access_log=False,
        # Otherwise every client on loopback could choose the address by which limits are counted.
        proxy_headers="FORWARDED_ALLOW_IPS" in environment,
        forwarded_allow_ips=environment.get("FORWARDED_ALLOW_IPS"),
        ws_max_size=MAX_BODY_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=60.0,
        ws_ping_timeout=600.0,  # a client whose loop is busy generating is not gone
        timeout_graceful_shutdown=1,
        backlog=2048,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has ended its connections
        uvicorn.Server(config).run(sockets=sockets)
    return 0


def application(environment: Mapping[str, str], peers: Peers | None = None) -> Application:
    """Return the ASGI application that these variables describe.

    Args:
        environment: The variables of the server.
        peers: Counts of each peer, shared with the protocols of the server; None: only the application counts.

    Raises:
        ValueError: A variable is missing or malformed.
        SnapshotError: The folder is not a readable snapshot.
        ImportError: OpenEnv is not installed, or a mixture of two versions.
    """
    if reason := overwritten():
        raise ImportError(reason)
    options = ServerOptions.from_variables(environment)
    limits = ServerLimits.from_variables(environment)
    if not environment.get("FINQA_SNAPSHOT"):
        raise ValueError("FINQA_SNAPSHOT, the folder of a snapshot, is missing")
    snapshot = SnapshotReader(
        Path(environment["FINQA_SNAPSHOT"]),
        name=environment.get("FINQA_SNAPSHOT_NAME", ""),
        digest=environment.get("FINQA_SNAPSHOT_DIGEST", ""),
    )
    # Imported after the checks: openenv-core takes seconds, which a bad variable or snapshot need not wait for.
    from finqa_plugins.environments.openenv_finqa.server.server_app import build_app

    return build_app(ToolService(snapshot, options), options, limits, peers or Peers(limits))


def _inherited(environment: Mapping[str, str]) -> list[socket.socket] | None:
    text = environment.get("FINQA_LISTEN_FD")
    if text is None:
        return None
    try:
        return [socket.socket(fileno=int(text))]
    except (ValueError, OSError) as error:
        raise ValueError(f"FINQA_LISTEN_FD is not an open socket ({error}), got {text[:64]!r}") from None


def _raise_file_limit() -> None:
    """Raise the limit of open files: every connection is one, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
