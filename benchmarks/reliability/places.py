"""Where the sandboxes of a training are: server processes of this machine, or a Daytona on loopback behind a proxy."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.reliability.faulty_connections import FaultyConnections
from benchmarks.reliability.schedule import Place as Name
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.types import ServerSpec
from finqa_cli.wiring.build import open_environment
from finqa_plugins.sandboxes.local.local_ledger import Ledger
from finqa_testing import LoopbackConfig, LoopbackProcess
from finqa_testing.daytona.config import Faults

API_KEY = "loopback-reliability"
STORM = Faults(rate_limited=0.3, server_error=0.1, lost_reply=0.05, late_error=0.05)
DELAY_S = 0.005


class Place(Protocol):
    """What faults and verdicts need of a place.

    Attributes:
        name: Name of the sandbox provider.
    """

    name: Name

    def variables(self) -> Mapping[str, str]:
        """Returns the variables with which `finqa` finds it."""
        ...

    def processes(self) -> list[int]:
        """Returns the pids of its own processes, which are ended with the place."""
        ...

    def servers(self) -> list[int]:
        """Returns the pids of the processes that serve sandboxes."""
        ...

    def sandboxes(self) -> int:
        """Returns the number of sandboxes that exist."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalPlace:
    """Server processes that the product starts and watches itself."""

    name: Name = "local"

    def __init__(self, home: Path) -> None:
        self._ledger = home / "local"

    def variables(self) -> Mapping[str, str]:
        """Returns nothing: local sandboxes need no variables."""
        return {}

    def processes(self) -> list[int]:
        """Returns nothing: the product starts what there is."""
        return []

    def servers(self) -> list[int]:
        """Returns the pids of the ledger."""
        return sorted(int(path.stem) for path in self._ledger.glob("*.json") if path.stem.isdigit())

    def sandboxes(self) -> int:
        """Returns the sandboxes on servers that run."""
        return sum(len(entry.sandboxes) for entry in Ledger(self._ledger).entries())

    def cut(self) -> str:
        """Destroys the sockets of the servers' clients, as `ss --kill` does on a Linux kernel; "" without servers."""
        ports = [entry.port for entry in Ledger(self._ledger).entries()]
        for port in ports:
            command = ["ss", "--kill", "--tcp", "state", "established", "dst", f"127.0.0.1:{port}"]
            with contextlib.suppress(OSError):
                subprocess.run(command, capture_output=True, check=False)
        return f"connections to {len(ports)} servers" if ports else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class DaytonaPlace:
    """A Daytona on loopback: killed and started again on the same port it has forgotten all sandboxes."""

    name: Name = "daytona"

    def __init__(self, home: Path, seed: int) -> None:
        self._images = ready_image(home)
        self._seed = seed
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            port = _free_port()
            self.connections = exits.enter_context(FaultyConnections(port))
            self._config = LoopbackConfig(
                seed=self._seed,
                api_key=API_KEY,
                images=self._images,
                create_limit=0,
                origin=f"http://127.0.0.1:{self.connections.port}",
            )
            self._service = LoopbackProcess(self._config, port=port)
            self._port = port
            self._service.start()
            exits.callback(lambda: self._service.close())
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def variables(self) -> Mapping[str, str]:
        """Returns the address of the proxy, and the key."""
        return {"DAYTONA_API_URL": f"{self._config.origin}/api", "DAYTONA_API_KEY": API_KEY}

    def processes(self) -> list[int]:
        """Returns the pid of the service."""
        return [self._service.pid]

    def servers(self) -> list[int]:
        """Returns the pids of the guarded servers behind the sandboxes."""
        return self._service.control.stats()["servers"]

    def sandboxes(self) -> int:
        """Returns what the service itself counts."""
        return self._service.control.stats()["sandboxes"]

    def kill_service(self) -> None:
        """Ends the service with SIGKILL; its servers end with it."""
        os.kill(self._service.pid, signal.SIGKILL)
        self._service.close()

    def start_service(self) -> None:
        """Starts a service that knows of no sandbox, on the same port."""
        self._service = LoopbackProcess(self._config, port=self._port)
        self._service.start()

    def pause_service(self, number: signal.Signals) -> None:
        """Sends SIGSTOP or SIGCONT."""
        os.kill(self._service.pid, number)

    def kill_sandboxes(self, share: float) -> int:
        """Kills a share of the sandboxes; returns their number."""
        return len(self._service.control.kill(share=share))

    def freeze_sandboxes(self, share: float) -> list[str]:
        """Freezes a share of the sandboxes; returns their ids."""
        return self._service.control.freeze(share=share)

    def thaw_sandboxes(self, ids: list[str]) -> None:
        """Ends a freeze; sandboxes that are gone by then are no error."""
        with contextlib.suppress(OSError, RuntimeError):
            self._service.control.thaw(ids)

    def storm(self, faults: Faults) -> None:
        """Replaces the probabilities of faults."""
        self._service.control.set_faults(faults)

    def expire_addresses(self) -> None:
        """Makes every address of a sandbox that was given out answer 401."""
        self._service.control.expire_urls()


def ready_image(home: Path) -> dict[str, Path]:
    """Returns the image that `finqa --sandbox daytona` looks for, and the folder of the embedded snapshot."""
    from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
    from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name

    settings = Settings.model_validate({"data": {"home": home}, "model": {"name": "embedded"}})
    spec = open_environment(settings, NullReporter()).sandbox_spec()
    assert isinstance(spec, ServerSpec) and spec.snapshot
    return {image_name(spec, DaytonaSandboxConfig()): spec.snapshot.path}


def wait_until(condition: object, timeout_s: float) -> bool:
    """Waits for a condition; False when it does not come true in time."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
