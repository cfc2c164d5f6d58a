"""Ray nodes on loopback addresses, each with a HOME, working directory and temporary folder of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

START_S = 90.0
OBJECT_STORE_BYTES = 512 * 2**20
QUICK = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "2",
    "RAY_worker_niceness": "0",
}
"""A node that is gone is noticed in seconds, not in 15 s or more. Actors get as much of a busy machine as others: by
default they run at a niceness of 15, which is about 4 % of it."""

_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
CAN_HIDE = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
"""Whether this user may give a process a view of the filesystem of its own."""

Prepare = Callable[[Path], Mapping[str, str]]

RAY = Path(sys.executable).with_name("ray")


class Node:
    """One `ray start --block` and its children."""

    def __init__(
        self, cluster: Cluster, address: str, cpus: int, *, head: bool, prepare: Prepare, open_files: int | None
    ) -> None:
        self.address = address
        self.folder = Path(tempfile.mkdtemp(prefix="r", dir=cluster.folder))  # short: sockets are below it
        for name in ("home", "tmp", "cwd"):
            (self.folder / name).mkdir()
        hides = [] if head or not CAN_HIDE else ["unshare", "--mount", "sh", "-c", _HIDE, str(cluster.controller)]
        place = ["--head", f"--port={cluster.port}"] if head else [f"--address={cluster.address}"]
        command = [*hides, RAY, "start", "--block", *place, f"--node-ip-address={address}", f"--num-cpus={cpus}"]
        command += [f"--temp-dir={self.folder / 'tmp'}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        command += ["--include-dashboard=false"] * head + ["--disable-usage-stats"]
        changed = prepare(self.folder)
        self._log = (self.folder / "log").open("w")
        self._process = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.folder / "cwd",
            env={
                **os.environ,
                **QUICK,
                "HOME": str(self.folder / "home"),
                "TMPDIR": str(self.folder / "tmp"),
                **cluster.variables,
                **changed,
            },
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_begin, open_files),
        )

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    def output(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends all processes of the node at once, as when the machine is gone."""
        for pid in (self._process.pid, *_descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(timeout=30)

    def close(self) -> None:
        """Ends all processes of the node. Idempotent."""
        self.kill()
        self._log.close()


class Cluster:
    """A head without CPUs, where the controller runs, and nodes with some.

    Attributes:
        folder: Folder of all nodes.
        controller: Folder for the controller. The nodes find it empty, as on other machines.
        variables: Environment of all nodes, beside that of this process.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        self.controller = self.folder / "controller"
        self.controller.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.2", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.2:{self.port}"
        self.nodes: list[Node] = []
        self.head = Node(self, "127.0.0.2", 0, head=True, prepare=lambda folder: {}, open_files=None)
        self._wait_for_port()
        self._last = 2

    def add(self, cpus: int = 2, *, prepare: Prepare = lambda folder: {}, open_files: int | None = None) -> Node:
        """A new node; it has an address that no other had.

        Args:
            cpus: CPUs that Ray uses of it.
            prepare: Called with its folder before it starts; returns further variables.
            open_files: Hard limit of open files of its processes.
        """
        self._last += 1
        node = Node(self, f"127.0.0.{self._last}", cpus, head=False, prepare=prepare, open_files=open_files)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in (*self.nodes, self.head):
            node.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.head.running():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.2", self.port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"The head did not start:\n{self.head.output()}")


@contextlib.contextmanager
def running_cluster(variables: Mapping[str, str] | None = None, nodes: int = 2, cpus: int = 2) -> Iterator[Cluster]:
    """A head and so many nodes, started side by side, with further variables."""
    cluster = Cluster(variables or {})
    try:
        for _ in range(nodes):
            cluster.add(cpus)
        yield cluster
    finally:
        cluster.close()


def _begin(open_files: int | None) -> None:
    """Sets the limit of open files, and has the kernel end this process with the tests (PR_SET_PDEATHSIG).

    `ray start` then ends what it started.
    """
    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    return [*found, *(deeper for child in found for deeper in _descendants(child))]
