"""Daytona's service on 127.0.0.1, in this event loop or in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from finqa_testing.daytona.account import Account
from finqa_testing.daytona.config import LoopbackConfig
from finqa_testing.daytona.http_service import (
    HOST,
    DroppedConnection,
    Endpoint,
    HttpServer,
    LostReply,
    Refusal,
    until_disconnected,
)
from finqa_testing.daytona.loopback_control import AsyncControl, Control, ControlApi
from finqa_testing.daytona.preview_proxy import PREFIX, PreviewProxy
from finqa_testing.daytona.sandbox_api import SandboxApi
from finqa_testing.daytona.server_guard import raise_file_limit
from finqa_testing.daytona.snapshot_api import SnapshotApi
from finqa_testing.daytona.storage import CA_VARIABLE, Authority, Storage, trusted
from finqa_testing.daytona.toolbox_api import ToolboxApi
from finqa_testing.loopback_process import LoopbackService

FAULTY = ("/api/", "/toolbox/")
EVENTS = "/api/socket.io"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
SERVER_ERRORS = (500, 502, 503)
FOLDER_PREFIX = "loopback-daytona-"
LOCK = "lock"


class LoopbackDaytona:
    """Serves the part of Daytona's REST API that the SDK 0.226.1 uses for sandboxes, from the current event loop.

    ```python
    config = LoopbackConfig(images={"finqa-test": snapshot_folder})
    async with LoopbackDaytona(config) as loopback:
        async with AsyncDaytona(DaytonaConfig(api_key=loopback.api_key, api_url=loopback.api_url)) as daytona:
            sandbox = await daytona.create(CreateSandboxFromSnapshotParams(snapshot="finqa-test"))
            await sandbox.process.create_session("server")
            await sandbox.process.execute_session_command(
                "server", SessionExecuteRequest(command="python -m my_package.server", run_async=True)
            )
            url = (await sandbox.create_signed_preview_url(8000, 3600)).url  # http:// and ws://, to the real server
            await loopback.control.kill(share=0.2)
    ```

    Sandboxes are entries of a table. A command `python -m MODULE` in a session connects the sandbox to a real process
    of this interpreter that serves MODULE and is shared by all sandboxes of one image with the same variables; it gets
    the variables HOST and PORT and must listen there. Other commands are run by `/bin/sh` on this machine. Paths inside
    the image are replaced by paths on this machine in values of variables and in commands. To upload files for a
    snapshot from this process, see `trusted`.

    Not supported are volumes, git, listing and deleting files of a sandbox, the code interpreter, terminals, warm
    pools, and events, instead of which the SDK polls.

    On exit every sandbox, connection and process is ended.
    """

    def __init__(self, config: LoopbackConfig | None = None, *, port: int = 0) -> None:
        self.config = config or LoopbackConfig()
        self.api_key = self.config.api_key or f"loopback-{secrets.token_hex(16)}"
        self._port = port
        self._exits: contextlib.AsyncExitStack | None = None
        self._authority: Authority | None = None

    @property
    def port(self) -> int:
        """The port of the API, the toolbox, the previews and the control."""
        return self._port

    @property
    def api_url(self) -> str:
        """The value of `api_url` for the SDK."""
        return f"http://{HOST}:{self._port}/api"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process uses this Daytona instead of the cloud."""
        assert self._authority is not None, "it has not been started"
        return {
            "DAYTONA_API_URL": self.api_url,
            "DAYTONA_API_KEY": self.api_key,
            **self._authority.variables(),
        }

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Trusts the certificate of the object storage while this process uploads files with the SDK.

        Other processes need only `environment`.
        """
        assert self._authority is not None, "it has not been started"
        with trusted(self._authority.bundle):
            yield

    @property
    def control(self) -> AsyncControl:
        """Client for statistics and for faults on demand."""
        return AsyncControl(Control(self._port, self.api_key))

    async def start(self) -> None:
        """Starts serving.

        Raises:
            OSError: The port is in use.
        """
        raise_file_limit()
        async with contextlib.AsyncExitStack() as exits:
            folder = exits.enter_context(own_folder())
            self._authority = Authority(folder / "trust")
            account = Account(self.config, folder)
            exits.push_async_callback(account.close)
            proxy = PreviewProxy(account)
            exits.push_async_callback(proxy.close)
            router = Router([Mount(PREFIX, proxy)])
            server = HttpServer(router)
            exits.push_async_callback(server.close)
            self._port = await server.open(self._port)
            storage = Storage(folder / "storage", self._authority)
            exits.push_async_callback(storage.close)
            origin = self.config.origin or f"http://{HOST}:{self._port}"
            for api in (
                SandboxApi(account, origin),
                SnapshotApi(account, storage, origin),
                ToolboxApi(account),
                ControlApi(account),
            ):
                router.routes.extend(_route(account, self.api_key, endpoint) for endpoint in api.endpoints())
            router.routes.append(_route(account, self.api_key, None))
            account.run(account.keep_time())
            self._exits = exits.pop_all()

    async def close(self) -> None:
        """Ends every sandbox, connection and process. Idempotent."""
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


def _route(account: Account, api_key: str, endpoint: Endpoint | None) -> Route:
    """Returns the route of a handler, which is called after the key is checked and faults are injected, and is counted.

    Without a handler it is the route for all other paths, which answers 404.
    """

    async def answer(request: Request) -> Response:
        path: str = request.scope["path"]
        try:
            response = await admit(request, path)
            status = response.status_code
        except Refusal as refusal:
            response, status = refusal.response(path), refusal.status
        except LostReply:
            response, status = DroppedConnection(), 0
        account.counters.request(f"{request.method} {endpoint[1] if endpoint else 'unknown'}", status)
        return response

    async def admit(request: Request, path: str) -> Response:
        if path.startswith(EVENTS):
            raise Refusal(404, "There are no events here; the SDK polls instead")
        if request.headers.get("authorization") != f"Bearer {api_key}":
            account.counters.unauthorised += 1
            raise Refusal(401, "Invalid credentials")
        if endpoint is None:
            raise Refusal(404, f"Cannot {request.method} {path}")
        handler = endpoint[2]
        parameters = {name: unquote(value) for name, value in request.path_params.items()}
        if not path.startswith(FAULTY):
            return await handler(request, **parameters)
        random, config = account.random, account.config
        await asyncio.sleep(random.seconds("api", config.latency.api))
        if random.hit("server_error", config.faults.server_error):
            status = random.stream("server_error status").choice(SERVER_ERRORS)
            raise Refusal(status, "The service is unavailable (injected fault)")
        hangs = random.hit("hang", config.faults.hang)
        response = await handler(request, **parameters) if request.method == "POST" or not hangs else Response()
        if hangs:
            await until_disconnected(request.receive)
            raise LostReply
        return response

    methods, pattern = ([endpoint[0]], endpoint[1]) if endpoint else (METHODS, "/{path:path}")
    return Route(pattern, answer, methods=methods)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Makes a new folder and removes it at the end. If its owner was killed, the next loopback removes it.

    The owner holds a lock on a file inside, which the kernel releases at the owner's end, also after SIGKILL.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{FOLDER_PREFIX}"))
    with (unfinished / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = unfinished.rename(unfinished.with_name(unfinished.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class LoopbackProcess(LoopbackService):
    """A loopback Daytona in a child process, which code without an event loop can use as well.

    ```python
    with LoopbackProcess(LoopbackConfig(images={"finqa-test": snapshot_folder})) as loopback:
        subprocess.run(["finqa", "sandbox", "ls"], env={**os.environ, **loopback.environment})
        assert loopback.control.stats()["sandboxes"] == 0
    ```

    It ends with this process, also if this process is killed by SIGKILL. It is an asynchronous context manager too.
    """

    def __init__(self, config: LoopbackConfig | None = None, *, port: int = 0) -> None:
        self.config = config or LoopbackConfig()
        super().__init__("daytona", self.config, proof="DAYTONA_API_KEY", port=port)

    @property
    def api_url(self) -> str:
        """The value of `api_url` for the SDK."""
        return self.environment["DAYTONA_API_URL"]

    @property
    def api_key(self) -> str:
        """The key that the service accepts."""
        return self.environment["DAYTONA_API_KEY"]

    @property
    def port(self) -> int:
        """The port of the API, the toolbox, the previews and the control."""
        return urlsplit(self.api_url).port or 0

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Trusts the certificate of the object storage, as `LoopbackDaytona.trusted` does."""
        with trusted(self.environment[CA_VARIABLE]):
            yield

    @property
    def control(self) -> Control:
        """Client for statistics and for faults on demand. Its calls block; in an event loop use `async_control`."""
        return Control(self.port, self.api_key)

    @property
    def async_control(self) -> AsyncControl:
        """Client for statistics and for faults on demand, with methods to await."""
        return AsyncControl(self.control)

    async def __aenter__(self) -> LoopbackProcess:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
