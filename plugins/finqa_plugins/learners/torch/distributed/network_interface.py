"""The network interface over which the processes of several machines reach each other.

Gloo listens at the address of this machine's own host name unless it is told an interface, and on Debian and Ubuntu
that name is 127.0.1.1: processes of other machines are then refused. NCCL chooses an interface by its name.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Variables with the name of the interface; values of the user have priority."""

_SIOCGIFADDR = 0x8915
"""ioctl of Linux: the IPv4 address of an interface (netdevice(7))."""

_ANYWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737): no packet is sent there; the kernel only says what it would leave by."""


def use_interface_to(host: str) -> str:
    """Make gloo and NCCL use the interface by which this machine reaches a host, unless the environment names others.

    Args:
        host: Name or address of the machine of the first process. This may be that machine itself, and its name may be
            a loopback address here: then the interface of the default route is used.

    Returns:
        The interface; empty if it is not found or all processes are on this machine, and nothing is changed.
    """
    if _is_loopback(host):
        return ""
    found = next((name for each in (host, _ANYWHERE) if (name := _interface(_source(each)))), "")
    if found:
        os.environ.setdefault(GLOO, found)
        os.environ.setdefault(NCCL, found)
    return found


def _source(host: str) -> str:
    """Return the address from which packets to a host leave; empty if it is a loopback address or there is no route."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            address = str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""
    return "" if _is_loopback(address) else address


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:  # a name
        return False


def _interface(address: str) -> str:
    """Return the interface with an address; empty if there is none."""
    if not address or sys.platform != "linux":
        return ""
    if ":" in address:
        return _interface_of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    try:
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()]
    except OSError:
        return ""
    wanted = ipaddress.ip_address(address).packed.hex()
    return next((row[-1] for row in rows if row and row[0] == wanted), "")
