"""Facts about one node. The class is pickled by value, so that it also works if the node has another finqa or none.

So all imports at the top are from the standard library, and results have plain types.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CONNECT_S = 5.0
"""Seconds that another node's port may take to accept a connection."""

MEET_S = 45.0
"""Seconds that the nodes may take to import PyTorch and to meet."""

MEETING = """
import datetime, os
import torch.distributed as dist
from finqa_plugins.learners.torch.distributed.network_interface import use_interface_to
use_interface_to(os.environ["MASTER_ADDR"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
dist.barrier()
"""
"""Program that joins learner processes of other machines, as the learner does."""

WHOLE = 4 * 2**20
"""Largest file in bytes that is hashed completely; of a larger one, its size and `BLOCKS` blocks of `BLOCK` bytes."""

BLOCK, BLOCKS = 2**16, 64

MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model", ".jinja")

DRIVER = ("nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits")
DRIVER_S = 10.0


class NodeProbe:
    """A Ray actor without resources; the controller makes one in its own process as well."""

    def __init__(self) -> None:
        """Collects nothing yet."""
        self._listening: socket.socket | None = None

    def look(self, model: str, components: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return facts by the field names of `NodeFacts`.

        Args:
            model: Folder or hub id of the base model; empty: no model is looked for.
            components: Kind and name of the components that will run there.
            settings: Those of the hook `survey_nodes`.
        """
        return {
            "machine": _machine(),
            **_finqa(),
            "ray": _version("ray"),
            "python": platform.python_version(),
            "model": digest_model(model) if model else {},
            "devices": self.devices(),
            "memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            **_limits(),
            "token": _token(),
            "lacks": _lacks(components, settings),
        }

    def devices(self) -> list[dict[str, Any]]:
        """Return the CUDA devices of the driver, with memory in bytes."""
        return list(_devices())

    def clock(self) -> float:
        """Return the Unix time in seconds."""
        return time.time()

    def listen(self, address: str) -> int:
        """Listen on a free port at this node's address, as a learner's rendezvous and an engine's server do.

        Returns:
            The port. The kernel accepts connections, so no code here needs to wait for them.
        """
        self._listening = socket.create_server((address, 0), backlog=512)
        port: int = self._listening.getsockname()[1]
        return port

    def free_port(self, address: str) -> int:
        """Return a free port at this node's address."""
        with socket.create_server((address, 0)) as free:
            port: int = free.getsockname()[1]
        return port

    def meet(self, rank: int, size: int, leader: tuple[str, int]) -> str:
        """Wait for the other nodes over gloo, as learner processes do; return why they did not meet, empty if they did.

        Args:
            rank: Number of this node.
            size: Number of nodes, all of which call this at the same time.
            leader: Address of the node with rank 0, and a free port there.
        """
        variables = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": leader[0], "MASTER_PORT": leader[1]}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        try:  # in a process of its own: gloo does not always give up in time
            subprocess.run(
                [sys.executable, "-c", MEETING],
                env=environment,
                capture_output=True,
                text=True,
                timeout=MEET_S,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {MEET_S:g} s"
        except subprocess.CalledProcessError as error:
            lines = [line for line in str(error.stderr).splitlines() if line.strip()]
            return lines[-1].strip()[:200] if lines else f"exit status {error.returncode}"
        except OSError as error:
            return str(error)
        return ""

    def reach(self, others: Mapping[str, tuple[str, int]]) -> dict[str, str]:
        """Return for each other node whose port cannot be reached the reason, by name.

        Args:
            others: Name -> host and port.
        """
        reasons: dict[str, str] = {}
        for name, place in others.items():
            try:
                socket.create_connection(place, timeout=CONNECT_S).close()
            except OSError as error:
                reasons[name] = f"port {place[1]}: {error}"
        return reasons


def digest_model(model: str) -> dict[str, str]:
    """Return the digest of each file of a model; empty if this machine does not have the model.

    For large files only the size and blocks spread over the file are hashed, so that tens of gigabytes take a second.

    Args:
        model: Folder, or hub id that is looked up in the hub's cache.
    """
    folder = Path(model)
    if not folder.is_dir():
        try:
            folder = Path(importlib.import_module("finqa_cli.local_models").cached_model(model) or "")
        except Exception:  # finqa is not installed, or has another version
            return {}
    if not folder.name:
        return {}
    try:
        return {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.suffix in MODEL_FILES}
    except OSError:
        return {}


def _digest(path: Path) -> str:
    size = path.stat().st_size
    total = hashlib.sha256(str(size).encode())
    for block in _blocks(path, size):
        total.update(block)
    return total.hexdigest()


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        if size <= WHOLE:
            yield file.read()
            return
        for number in range(BLOCKS):
            file.seek((size - BLOCK) * number // (BLOCKS - 1))
            yield file.read(BLOCK)


def _finqa() -> dict[str, str]:
    """Return the version of finqa, and a digest of its source, its plugins and this distribution."""
    try:
        package = importlib.import_module("finqa_cli")
        total = hashlib.sha256()
        for name in ("finqa_cli", "finqa_plugins", "finqa_ray"):
            root = Path(str(importlib.import_module(name).__file__)).parent
            for path in sorted(root.rglob("*.py")):
                total.update(f"{path.relative_to(root.parent)}\n".encode())
                total.update(path.read_bytes())
        return {"finqa": str(package.__version__), "code": total.hexdigest()}
    except (ImportError, OSError, AttributeError):
        return {"finqa": "", "code": ""}


def _version(package: str) -> str:
    try:
        return str(getattr(importlib.import_module(package), "__version__", ""))
    except ImportError:
        return ""


def _machine() -> str:
    """Return the boot of the kernel and the network namespace: each container has its own loopback addresses."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/net").readlink()))
    return " ".join(parts) or socket.gethostname()


def _devices() -> Iterator[dict[str, Any]]:
    """All devices of the driver, also those that CUDA_VISIBLE_DEVICES hides from this process, as Ray sets it."""
    try:
        found = subprocess.run(DRIVER, capture_output=True, text=True, timeout=DRIVER_S, check=True).stdout
        rows = [line.rsplit(",", 2) for line in found.splitlines() if line.strip()]
        devices = [(name.strip(), float(free) * 2**20, float(total) * 2**20) for name, free, total in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return
    yield from ({"name": name, "free": free, "total": total} for name, free, total in devices)


def _limits() -> dict[str, Any]:
    folder = Path(tempfile.gettempdir())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shared = Path("/dev/shm")
    return {
        "shared_memory": float(shutil.disk_usage(shared).total) if shared.is_dir() else None,
        "open_files": None if hard == resource.RLIM_INFINITY else hard,
        "disk": str(folder),
        "disk_free": float(shutil.disk_usage(folder).free) if os.access(folder, os.W_OK | os.X_OK) else None,
    }


def _token() -> bool:
    """Return whether calls of this process carry a token; Ray has no public function for this."""
    try:
        utilities = importlib.import_module("ray._private.authentication.authentication_utils")
        return bool(utilities.is_token_auth_enabled())
    except (ImportError, AttributeError):
        return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _lacks(components: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the problems that keep components from running here, according to the finqa of this node."""
    try:
        extend = importlib.import_module("finqa_cli.extend")
    except ImportError:
        return []  # which is reported separately
    home = str(Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser())
    found: list[dict[str, str]] = []
    for kind, name in components:
        given = {**settings, "data": {**settings.get("data", {}), "home": home}}
        given[kind] = {**settings.get(kind, {}), "name": name}
        try:
            checks = extend.readiness(extend.registry(), extend.registry().find(kind, name), given)
        except Exception as error:  # finqa may have another version here
            text, remedy = str(error) or type(error).__name__, str(getattr(error, "remedy", ""))
            found.append({"name": name, "status": "fail", "detail": text, "remedy": remedy})
        else:
            found += [
                {"name": name, "status": check.status, "detail": check.detail, "remedy": check.remedy}
                for check in checks
            ]
    return found
