"""A Daytona on 127.0.0.1 in this event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from types import TracebackType

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.account_api import AccountApi
from finqa_cli.testing.daytona.config import LoopbackConfig
from finqa_cli.testing.daytona.control_api import ControlApi
from finqa_cli.testing.daytona.files_api import FilesApi
from finqa_cli.testing.daytona.folders import own_folder
from finqa_cli.testing.daytona.listener import HOST, Listener
from finqa_cli.testing.daytona.loopback_control import AsyncControl, Control
from finqa_cli.testing.daytona.network_guard import raise_file_limit
from finqa_cli.testing.daytona.proxy import PreviewProxy
from finqa_cli.testing.daytona.router import Router
from finqa_cli.testing.daytona.sandbox_api import SandboxApi
from finqa_cli.testing.daytona.snapshot_api import SnapshotApi
from finqa_cli.testing.daytona.storage import Storage
from finqa_cli.testing.daytona.toolbox_api import ToolboxApi
from finqa_cli.testing.daytona.trust import Authority, trusted


class LoopbackDaytona:
    """Serves the part of Daytona's REST API that the SDK 0.226.1 uses for sandboxes, from the current event loop.

    ```python
    config = LoopbackConfig(images={"finqa-test": snapshot_folder})
    async with LoopbackDaytona(config) as loopback:
        async with AsyncDaytona(DaytonaConfig(api_key=loopback.api_key, api_url=loopback.api_url)) as daytona:
            box = await daytona.create(CreateSandboxFromSnapshotParams(snapshot="finqa-test"))
            await box.process.create_session("server")
            await box.process.execute_session_command(
                "server", SessionExecuteRequest(command="python -m my_package.server", run_async=True)
            )
            url = (await box.create_signed_preview_url(8000, 3600)).url  # http:// and ws://, to the real server
            await loopback.control.kill(share=0.2)
    ```

    Boxes are entries of a table. A command `python -m MODULE` in a session connects the box to a real process of this
    interpreter that serves MODULE, shared by all boxes of one image with the same variables; it is told HOST and PORT
    and must listen there. Other commands are run by `/bin/sh` on this machine. Values of variables, and words of
    commands, that are paths inside the image are replaced by paths on this machine. Snapshots are built as `build.py`
    says; to upload files for them from this process, see `trusted`.

    Not here: volumes, git, the code interpreter, terminals, warm pools, and events, for which the SDK polls instead.

    On exit every box, connection and process is gone.
    """

    def __init__(self, config: LoopbackConfig | None = None, *, port: int = 0) -> None:
        self.config = config or LoopbackConfig()
        self.api_key = self.config.api_key or f"loopback-{secrets.token_hex(16)}"
        self._port = port
        self._exits: contextlib.AsyncExitStack | None = None
        self._authority: Authority | None = None

    @property
    def port(self) -> int:
        """Of everything: API, toolbox, previews and control."""
        return self._port

    @property
    def api_url(self) -> str:
        """What the SDK calls `api_url`."""
        return f"http://{HOST}:{self._port}/api"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process finds this Daytona instead of the cloud."""
        assert self._authority is not None, "it has not been started"
        return {
            "DAYTONA_API_URL": self.api_url,
            "DAYTONA_API_KEY": self.api_key,
            **self._authority.variables(),
        }

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Around code of this process that uploads files with the SDK: trusts the certificate of the object storage.

        Other processes need nothing but `environment`.
        """
        assert self._authority is not None, "it has not been started"
        with trusted(self._authority.bundle):
            yield

    @property
    def control(self) -> AsyncControl:
        """What happened, and accidents."""
        return AsyncControl(Control(self._port, self.api_key))

    async def start(self) -> None:
        """Starts serving.

        Raises:
            OSError: The port is taken.
        """
        raise_file_limit()
        async with contextlib.AsyncExitStack() as exits:
            folder = exits.enter_context(own_folder())
            self._authority = Authority(folder / "trust")
            account = Account(self.config, folder)
            exits.push_async_callback(account.close)
            proxy = PreviewProxy(account)
            exits.push_async_callback(proxy.close)
            router = Router(account, self.api_key)
            listener = Listener(router.answer, proxy.takeover)
            exits.push_async_callback(listener.close)
            self._port = await listener.open(self._port)
            storage = Storage(folder / "storage", self._authority)
            exits.push_async_callback(storage.close)
            toolbox = ToolboxApi(account)
            origin = f"http://{HOST}:{self._port}"
            for api in (
                SandboxApi(account, origin),
                SnapshotApi(account, storage, origin),
                toolbox,
                FilesApi(toolbox),
                AccountApi(account),
                ControlApi(account),
            ):
                api.register(router)
            account.run(asyncio.get_running_loop().create_task(account.keep_time()))
            self._exits = exits.pop_all()

    async def close(self) -> None:
        """Ends every box, connection and process. Idempotent."""
        if self._exits is not None:
            exits, self._exits = self._exits, None
            await exits.aclose()

    async def __aenter__(self) -> LoopbackDaytona:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
