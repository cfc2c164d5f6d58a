"""The server of `finqa view`: a socket on 127.0.0.1 and a token for each start."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from finqa_cli.errors import ConfigError
from finqa_cli.publishing.view.run_catalog import RunCatalog
from finqa_cli.publishing.view.view_app import view_application
from finqa_cli.publishing.view.viewed_files import run_id
from finqa_cli.runs.run_summary import is_run

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewAddress:
    """The addresses of the pages.

    Attributes:
        url: Address with the token, to show to the user.
        opening: Address without the token that works once, for the command line of a browser, which every user of the
            machine can read.
    """

    url: str
    opening: str


def serve_view(
    places: Sequence[Path], *, control: Path | None = None, port: int = 0, ready: Callable[[ViewAddress], None]
) -> None:
    """Serves the runs of some folders until SIGINT (Ctrl-C) or SIGTERM.

    Args:
        places: Folders of runs, or single runs. One run opens with its page, two runs with their comparison.
        control: The control of the one run in `places`, which is shown on the run's page.
        port: Port on 127.0.0.1; 0 for a free one.
        ready: Called as soon as requests are answered and a signal would end the server.

    Raises:
        ConfigError: The port is in use or not allowed.
        KeyboardInterrupt: SIGINT ended it.
    """
    with _listen(port) as listener:
        port = listener.getsockname()[1]
        stopping = threading.Event()
        token, opening = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        hosts = frozenset(f"{name}{suffix}" for name in (HOST, "localhost") for suffix in _suffixes(port))
        start = _start(places) if control is None else f"run/{run_id(places[0])}/control/{run_id(control)}"
        viewed = [*places, *([] if control is None else [control])]
        app = view_application(RunCatalog(viewed, stopping), token=token, hosts=hosts, opening=opening, start=start)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        origin = f"http://{HOST}:{port}"
        address = ViewAddress(url=f"{origin}/{token}/{start}", opening=f"{origin}/open/{opening}")
        _Server(config, stopping, lambda: ready(address)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that reports when it is ready for requests and signals; when it ends, its threads stop reading files."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server, which handles signals already, and calls `ready`."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server and the reading of files."""
        self._stopping.set()
        super().handle_exit(sig, frame)


def _listen(port: int) -> socket.socket:
    try:
        listener = socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used: {os.strerror(error.errno or 0)}.",
            remedy="--port 0, for a free one",
        ) from error
    listener.setblocking(False)
    return listener


def _suffixes(port: int) -> tuple[str, ...]:
    return (f":{port}", "") if port == 80 else (f":{port}",)  # browsers leave out port 80


def _start(places: Sequence[Path]) -> str:
    """Returns the path of the first page: that of one run, the comparison of two, else the list."""
    if not 1 <= len(places) <= 2 or not all(map(is_run, places)):
        return ""
    return f"{'compare' if len(places) == 2 else 'run'}/{'/'.join(map(run_id, places))}"
