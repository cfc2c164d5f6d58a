"""A server of a snapshot for clients that are not finqa: its address, its token and its process."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from finqa_cli.errors import ConfigError, ServiceUnavailableError
from finqa_cli.processes import host_name
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import ServerSpec
from finqa_cli.wiring.build import open_environment

TOKEN = "FINQA_TOKEN"
PASSED = (TOKEN, "FINQA_REQUIRE_TOKEN", "FINQA_ALLOWED_HOSTS", "FORWARDED_ALLOW_IPS")
"""Variables of the user that are for the server, see docs/server.md."""

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class SnapshotServer:
    """A server whose socket listens already; `become` starts it.

    Attributes:
        url: Its address for clients.
        made_token: The token that was made for it; empty: none was needed, or the user has one.
    """

    url: str
    made_token: str = field(repr=False)
    _command: tuple[str, ...]
    _variables: Mapping[str, str] = field(repr=False)
    _listening: socket.socket = field(repr=False)

    def become(self) -> NoReturn:
        """Replace this process by the server."""
        self._listening.set_inheritable(True)
        os.execvpe(self._command[0], self._command, {**self._variables})


def serve_snapshot(
    settings: Settings, host: str, port: int, environ: Mapping[str, str], reporter: Reporter
) -> SnapshotServer:
    """Listen at an address for the server of the settings' environment.

    Args:
        settings: Settings with the environment and the name of the snapshot.
        host: Address or name to listen on.
        port: Port; 0: a free one.
        environ: The variables of this process; those in `PASSED` are passed to the server.
        reporter: Shows that a snapshot is compiled.

    Raises:
        ConfigError: The environment has no server with a snapshot.
        DataError: There is no such snapshot, or it is damaged.
        ServiceUnavailableError: The address cannot be used.
    """
    spec = open_environment(settings, reporter).sandbox_spec()
    if not isinstance(spec, ServerSpec) or spec.snapshot is None or not spec.module:
        raise ConfigError(
            f"Environment {settings.environment.name!r} has no server with a snapshot here.",
            remedy="--environment finqa, without environment.options.url",
        )
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server((str(address[0]), port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        raise ServiceUnavailableError(
            f"{host} port {port} cannot be used: {getattr(error, 'strerror', None) or error}.", remedy="--port 0"
        ) from error
    bound = ipaddress.ip_address(listening.getsockname()[0])
    passed = {name: environ[name] for name in (*INHERITED, *PASSED) if name in environ}
    open_to_others = not bound.is_loopback and passed.get("FINQA_REQUIRE_TOKEN") != "0"
    made = secrets.token_urlsafe(32) if open_to_others and not passed.get(TOKEN) else ""
    command, variables = spec.process(str(bound), listening.getsockname()[1])
    shown = host_name() if bound.is_unspecified else f"[{bound}]" if bound.version == 6 else str(bound)
    return SnapshotServer(
        f"http://{shown}:{variables['PORT']}",
        made,
        command,
        {
            **passed,
            **variables,
            **({TOKEN: made} if made else {}),
            "PYTHONSAFEPATH": "1",
            "FINQA_LISTEN_FD": str(listening.fileno()),
        },
        listening,
    )
