"""Runs a loopback service in its own process."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel

STOP_S = 10.0
SERVE_MODULE = "finqa_testing.serve"


class LoopbackService:
    """`python -m finqa_testing.serve NAME` as a child process, which ends with this process, also after SIGKILL.

    Attributes:
        environment: Variables with which the SDK uses the service; empty before `start`.
    """

    def __init__(self, name: str, config: BaseModel, *, proof: str, port: int = 0) -> None:
        """Keeps the arguments; starts nothing.

        Args:
            name: Name of the service: `daytona` or `coreweave`.
            config: Configuration of the service.
            proof: Name of a variable that the service prints only if it has started.
            port: Port on 127.0.0.1; 0 for a free one.
        """
        self._name = name
        self._config = config
        self._proof = proof
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """Its process id; raises RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError(f"the loopback {self._name} does not run")
        return self._process.pid

    def start(self) -> None:
        """Starts the service and waits until it is ready.

        Raises:
            RuntimeError: The service did not start; the reason is on stderr.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "loopback.json"
            path.write_text(self._config.model_dump_json(), encoding="utf-8")
            command = [sys.executable, "-m", SERVE_MODULE, self._name, "--config", str(path), "--port", str(self._port)]
            self._process = subprocess.Popen(
                [*command, "--while-stdin-open"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if not line.strip():  # an empty line ends the variables
                    break
                name, _, value = line.removeprefix("export ").strip().partition("=")
                self.environment[name] = "".join(shlex.split(value))
        if self._proof not in self.environment:
            self.close()
            raise RuntimeError(f"the loopback {self._name} did not start; the reason is on stderr")

    def close(self) -> None:
        """Ends the service and waits for its end. Idempotent."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
