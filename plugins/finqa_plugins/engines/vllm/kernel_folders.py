"""A folder of a server's own for what vLLM leaves among temporary files: sockets, files of rendezvous, locks."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

PREFIX = "finqa-vllm-"

LONGEST_SOCKET = 103
"""Bytes in the path of a Unix socket: what macOS takes; Linux takes 107."""

_NAMES = len(f"/{PREFIX}12345678/12345678-1234-1234-1234-123456789abc")
"""Of the folder and of a socket in it, which vLLM names by a uuid (vllm/utils/network_utils.py)."""


def make(environment: Mapping[str, str]) -> Path:
    """An empty folder whose path leaves room for the names of sockets.

    Args:
        environment: Of the server.

    Raises:
        OSError: It cannot be made.
    """
    usual = _usual(environment)
    fits = len(os.fsencode(usual)) + _NAMES <= LONGEST_SOCKET
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=usual if fits else "/tmp"))


def variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What sends a server's temporary files there.

    Compiled kernels stay where torch keeps them (torch/_inductor/runtime/cache_dir_utils.py), for the next start.
    TMPDIR comes first: setproctitle, which names vLLM's processes, needs the first in place, and torch sets the other.
    """
    kernels = _usual(environment) / f"torchinductor_{_user()}"
    others = {name: value for name, value in environment.items() if name != "TMPDIR"}
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(kernels), **others}


def _usual(environment: Mapping[str, str]) -> Path:
    named = Path(environment.get("TMPDIR", ""))
    return named if named.is_absolute() and os.access(named, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
