"""A loopback CoreWeave in a process of its own."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from finqa_cli.testing.coreweave.config import CoreWeaveConfig
from finqa_cli.testing.coreweave.control import CoreWeaveControl

STOP_S = 10.0


class LoopbackCoreWeave:
    """CoreWeave's sandbox service on 127.0.0.1, with real processes of this machine in its boxes.

    ```python
    with LoopbackCoreWeave() as loopback:
        subprocess.run(["finqa", "sandbox", "ls", "--sandbox", "cwsandbox"], env={**os.environ, **loopback.environment})
    ```

    It ends with this process, also when that is killed with SIGKILL. Boxes isolate nothing: commands that are not to
    be trusted need a supervisor of their own, as the real boxes do.
    """

    def __init__(self, config: CoreWeaveConfig | None = None) -> None:
        self.config = config or CoreWeaveConfig()
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    @property
    def api_key(self) -> str:
        """CoreWeave's key that it accepts."""
        return self.environment["CWSANDBOX_API_KEY"]

    @property
    def control(self) -> CoreWeaveControl:
        """What happened, and accidents."""
        return CoreWeaveControl(urlsplit(self.environment["CWSANDBOX_BASE_URL"]).netloc)

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            RuntimeError: It does not start; it said why on stderr.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "loopback.json"
            path.write_text(self.config.model_dump_json(), encoding="utf-8")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "finqa_cli.testing.coreweave", "--config", str(path), "--while-stdin-open"],
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
        if "CWSANDBOX_API_KEY" not in self.environment:
            self.close()
            raise RuntimeError("The loopback CoreWeave did not start; it said why on stderr")

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

    def __enter__(self) -> LoopbackCoreWeave:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _assignment(line: str) -> tuple[str, str]:
    """`export NAME=value` as `python -m finqa_cli.testing.coreweave` writes it."""
    name, _, value = line.removeprefix("export ").strip().partition("=")
    return name, "".join(shlex.split(value))
