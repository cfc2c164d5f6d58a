"""A loopback service in a process of its own, and the command line that both of them have."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

STOP_S = 10.0
LAST_PORT = 65_535


class ServedProcess:
    """`python -m MODULE --config FILE --while-stdin-open`: it ends with this process, also after SIGKILL.

    Attributes:
        environment: The variables that point the service's SDK there; empty before `start`.
    """

    def __init__(self, module: str, config: BaseModel, *, proof: str, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            module: Which prints `export NAME=value` lines, and an empty one once it serves.
            config: It is given.
            proof: A variable that is among those of a service that started.
            port: On 127.0.0.1; 0 for a free one.
        """
        self._module = module
        self._config = config
        self._proof = proof
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """Its process id; RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self._module} does not run")
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            RuntimeError: It does not start; it said why on stderr.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "loopback.json"
            path.write_text(self._config.model_dump_json(), encoding="utf-8")
            command = [sys.executable, "-m", self._module, "--config", str(path), "--port", str(self._port)]
            self._process = subprocess.Popen(
                [*command, "--while-stdin-open"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            lines = []
            for line in self._process.stdout:
                if not line.strip():  # an empty line ends the variables
                    break
                lines.append(line)
        self.environment = dict(_assignment(line) for line in lines)
        if self._proof not in self.environment:
            self.close()
            raise RuntimeError(f"{self._module} did not start; it said why on stderr")

    def close(self) -> None:
        """Ends it and waits for its end. Idempotent."""
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


def serve_detached(module: str, arguments: Sequence[str], pid_variable: str) -> int:
    """Starts `python -m MODULE ARGUMENTS` in the background and passes its variables on, its process id among them.

    Returns the exit status: 0 as soon as it serves, else its own.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if not line.strip():
            print(f"export {pid_variable}={process.pid}", flush=True)
            return 0
        print(line, end="")
    return process.wait()


def port_number(text: str) -> int:
    """The type of `--port`."""
    if not text.isdecimal() or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number up to {LAST_PORT}, got {text[:64]!r}")
    return int(text)


def config_values(path: Path | None) -> dict[str, Any]:
    """What `--config` holds, JSON by its name or else TOML; nothing without a file.

    Raises:
        OSError, ValueError: It cannot be read.
    """
    if path is None:
        return {}
    content = path.read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    return values


def _assignment(line: str) -> tuple[str, str]:
    """`export NAME=value` as a loopback writes it."""
    name, _, value = line.removeprefix("export ").strip().partition("=")
    return name, "".join(shlex.split(value))
