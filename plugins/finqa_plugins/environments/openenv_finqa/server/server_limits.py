"""Limits for clients of the server: who may send requests, how much, and how slowly."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from finqa_plugins.environments.openenv_finqa.server.server_episode import positive

MAX_BODY_BYTES: Final = 2**20
"""Longest body of a request, and longest frame of a websocket."""
MAX_HEAD_BYTES: Final = 2**16
"""Longest request line and headers together."""
MAX_BODIES_BYTES: Final = 2**25
"""Most bytes of unfinished bodies that one peer may have in the memory of the server."""
SHORTEST_TOKEN: Final = 16
ANY: Final = "*"
WILDCARDS: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one server process. The defaults are for a server that untrusted clients can reach.

    Attributes:
        token: Bearer token that every request but `/health` must carry; empty: no token is needed.
        require_token: Whether requests at other addresses than loopback are refused while there is no token.
        hosts: Host names allowed in `Host` and `Origin`, besides those of loopback; None: any.
        connections_per_peer: Most open connections of one peer.
        sessions_per_peer: Most sessions of one peer.
        header_timeout_s: Seconds in which a request line and its headers must arrive.
        body_timeout_s: Seconds in which the body of a request must arrive.
        opening_timeout_s: Seconds in which the first frame of a websocket must arrive.
    """

    token: str = field(default="", repr=False)
    require_token: bool = True
    hosts: frozenset[str] | None = frozenset()
    connections_per_peer: int = 2048
    sessions_per_peer: int = 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    opening_timeout_s: float = 300.0

    @classmethod
    def from_variables(cls, environment: Mapping[str, str]) -> ServerLimits:
        """Read HOST, FINQA_TOKEN, FINQA_REQUIRE_TOKEN, FINQA_ALLOWED_HOSTS and the limits of docs/server.md.

        Raises:
            ValueError: A variable is malformed; the message names it, and never shows the token.
        """
        default = cls()
        token = environment.get("FINQA_TOKEN", "")
        if token and not (
            len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
        ):
            raise ValueError(f"FINQA_TOKEN must have {SHORTEST_TOKEN} or more visible ASCII characters")
        required = environment.get("FINQA_REQUIRE_TOKEN", "1")
        if required not in ("0", "1"):
            raise ValueError(f"FINQA_REQUIRE_TOKEN must be 0 or 1, got {required[:64]!r}")
        return cls(
            token=token,
            require_token=required == "1",
            hosts=_hosts(environment, any_by_default=bool(token)),
            connections_per_peer=positive(environment, "FINQA_CONNECTIONS_PER_PEER", default.connections_per_peer),
            sessions_per_peer=positive(environment, "FINQA_SESSIONS_PER_PEER", default.sessions_per_peer),
            header_timeout_s=positive(environment, "FINQA_HEADER_TIMEOUT", default.header_timeout_s),
            body_timeout_s=positive(environment, "FINQA_BODY_TIMEOUT", default.body_timeout_s),
            opening_timeout_s=positive(environment, "FINQA_OPENING_TIMEOUT", default.opening_timeout_s),
        )

    def serves(self, address: str) -> bool:
        """Whether requests may arrive at this address of the server: except on loopback, only with a token."""
        return bool(self.token) or not self.require_token or is_loopback(address)

    def allows_host(self, host: str) -> bool:
        """Whether `Host` or `Origin` may name this host, given as `host_name` returns it."""
        return self.hosts is None or is_loopback(host) or host in self.hosts


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and for addresses of this machine alone, such as 127.0.0.1, ::1 and unix sockets."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_name(authority: str) -> str:
    """Return the host of `host`, `host:port` or `[address]:port` in lower case; empty if there is none."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, _, port = text.partition(":")
    return name.rstrip(".") if not port or port.isdecimal() else ""


def peer_of(client: tuple[str, int] | None) -> str:
    """Return the peer by which limits are counted: an IPv4 address, the /64 network of an IPv6 address, or ""."""
    if client is None:
        return ""
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return client[0]
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped:
        return client[0]
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


def _hosts(environment: Mapping[str, str], *, any_by_default: bool) -> frozenset[str] | None:
    text = environment.get("FINQA_ALLOWED_HOSTS")
    if text is None and any_by_default:
        return None
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if ANY in names:
        return None
    for name in names:
        if not host_name(name) or host_name(name) != name.lower().strip("[]").rstrip("."):
            raise ValueError(f"FINQA_ALLOWED_HOSTS must be host names without ports, or {ANY}, got {name[:64]!r}")
    host = environment.get("HOST", "")
    return frozenset({*map(host_name, names), *([] if host in WILDCARDS else [host.lower()])})
