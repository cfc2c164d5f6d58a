"""A loopback Daytona in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from finqa_cli.testing.daytona.config import LoopbackConfig
from finqa_cli.testing.daytona.control import AsyncControl, Control
from finqa_cli.testing.daytona.trust import CA_VARIABLE, trusted

STOP_S = 10.0


class LoopbackProcess:
    """As `LoopbackDaytona`, but as a child process: it costs this interpreter nothing, and plain functions can use it.

    ```python
    with LoopbackProcess(LoopbackConfig(images={"finqa-test": snapshot_folder})) as loopback:
        subprocess.run(["finqa", "sandbox", "ls"], env={**os.environ, **loopback.environment})
        assert loopback.control.stats()["boxes"] == 0
    ```

    It ends with this process, also when that is killed with SIGKILL. `async with` works too.
    """

    def __init__(self, config: LoopbackConfig | None = None, *, port: int = 0) -> None:
        self.config = config or LoopbackConfig()
        self._wanted_port = port
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    @property
    def api_url(self) -> str:
        """What the SDK calls `api_url`."""
        return self.environment["DAYTONA_API_URL"]

    @property
    def api_key(self) -> str:
        """The only key that it accepts."""
        return self.environment["DAYTONA_API_KEY"]

    @property
    def port(self) -> int:
        """Of everything: API, toolbox, previews and control."""
        return urlsplit(self.api_url).port or 0

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """As `LoopbackDaytona.trusted`."""
        with trusted(self.environment[CA_VARIABLE]):
            yield

    @property
    def control(self) -> Control:
        """What happened, and accidents. Blocking; `async_control` is for event loops."""
        return Control(self.port, self.api_key)

    @property
    def async_control(self) -> AsyncControl:
        """The same for event loops."""
        return AsyncControl(self.control)

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            RuntimeError: It does not start; the message holds what it said.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "loopback.json"
            path.write_text(self.config.model_dump_json(), encoding="utf-8")
            command = [sys.executable, "-m", "finqa_cli.testing.daytona", "--config", str(path), "--while-stdin-open"]
            self._process = subprocess.Popen(
                [*command, "--port", str(self._wanted_port)],
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
        if "DAYTONA_API_KEY" not in self.environment:
            self.close()
            raise RuntimeError("The loopback Daytona did not start; it said why on stderr")

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

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("The loopback Daytona does not run")
        return self._process

    def __enter__(self) -> LoopbackProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> LoopbackProcess:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _assignment(line: str) -> tuple[str, str]:
    """`export NAME=value` as `python -m finqa_cli.testing.daytona` writes it."""
    name, _, value = line.removeprefix("export ").strip().partition("=")
    return name, "".join(shlex.split(value))
