"""A loopback Daytona in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import TracebackType
from urllib.parse import urlsplit

from finqa_cli.testing.daytona.config import LoopbackConfig
from finqa_cli.testing.daytona.loopback_control import AsyncControl, Control
from finqa_cli.testing.daytona.trust import CA_VARIABLE, trusted
from finqa_cli.testing.served import ServedProcess


class LoopbackProcess(ServedProcess):
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
        super().__init__("finqa_cli.testing.daytona.serve_daytona", self.config, proof="DAYTONA_API_KEY", port=port)

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

    async def __aenter__(self) -> LoopbackProcess:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
