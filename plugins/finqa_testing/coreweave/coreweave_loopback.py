"""CoreWeave's sandbox service on 127.0.0.1: the server, its control, and a child process that runs it for tests."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from cwsandbox._proto import sandbox_pb2_grpc

from finqa_testing.coreweave.coreweave_service import CoreWeaveConfig, CoreWeaveSandboxes, SandboxService
from finqa_testing.loopback_process import LoopbackService

HOST = "127.0.0.1"
METHOD = "/finqa.testing.CoreWeaveControl/Call"
TIMEOUT_S = 30.0
_NAME = re.compile(r"finqa-[0-9a-f]{12}")


class CoreWeaveSandboxView(TypedDict):
    """A sandbox that has not ended."""

    id: str
    tags: list[str]
    image: str
    resources: dict[str, str]
    lifetime_s: int
    denied: list[bool]
    commands: int


class CoreWeaveStats(TypedDict):
    """The statistics that `stats()` returns.

    Attributes:
        sandboxes: Sandboxes that have not ended.
        sandboxes_ever: Number of sandboxes ever created.
        duplicates: Number of living sandboxes beyond the first with the same name that finqa gave.
        requests: Number of requests by method.
        faults: Number of injected faults by kind.
        seen: W&B's entity and project in the last request.
    """

    sandboxes: list[CoreWeaveSandboxView]
    sandboxes_ever: int
    duplicates: int
    requests: dict[str, int]
    faults: dict[str, int]
    seen: dict[str, str]


class CoreWeaveControl:
    """Client for the statistics of a running loopback CoreWeave and for faults on demand; its methods are awaited."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def stats(self) -> CoreWeaveStats:
        """Returns all statistics."""
        stats: CoreWeaveStats = await self._call({"do": "stats"})
        return stats

    async def configure(self, config: CoreWeaveConfig) -> None:
        """Replaces the configuration and resets the counts of requests and faults; sandboxes and the key stay."""
        await self._call({"do": "configure", "config": config.model_dump(mode="json")})

    async def kill(self, ids: Sequence[str] = ()) -> list[str]:
        """Makes the given sandboxes fail, or all without ids, and ends their commands. Returns the ids that failed."""
        hit: list[str] = await self._call({"do": "kill", "ids": [*ids]})
        return hit

    async def _call(self, request: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self._blocking, json.dumps(request).encode())

    def _blocking(self, request: bytes) -> Any:
        with grpc.insecure_channel(self._target) as channel:
            return json.loads(channel.unary_unary(METHOD)(request, timeout=TIMEOUT_S))


def _control_handler(sandboxes: CoreWeaveSandboxes, service: SandboxService) -> Any:
    """Returns the gRPC handler that answers `CoreWeaveControl`."""

    async def call(request: bytes, _context: Any) -> bytes:
        wanted = json.loads(request)
        if wanted["do"] == "kill":
            return json.dumps(await sandboxes.kill(wanted["ids"])).encode()
        if wanted["do"] == "configure":
            sandboxes.reconfigure(CoreWeaveConfig.model_validate(wanted["config"]))
            service.requests.clear()
            return b"null"
        return json.dumps(_stats(sandboxes, service)).encode()

    _, package, method = METHOD.split("/")
    return grpc.method_handlers_generic_handler(package, {method: grpc.unary_unary_rpc_method_handler(call)})


def _stats(sandboxes: CoreWeaveSandboxes, service: SandboxService) -> CoreWeaveStats:
    living = sandboxes.living()
    names = Counter(tag for sandbox in living for tag in sandbox.message.spec.tags if _NAME.fullmatch(tag))
    return CoreWeaveStats(
        sandboxes=[
            CoreWeaveSandboxView(
                id=sandbox.id,
                tags=[*sandbox.message.spec.tags],
                image=sandbox.message.spec.containers[0].image,
                resources={
                    "cpu": sandbox.message.spec.containers[0].resource_requirements.limits.cpu,
                    "memory": sandbox.message.spec.containers[0].resource_requirements.limits.memory,
                },
                lifetime_s=sandbox.message.spec.max_lifetime_seconds,
                denied=[sandbox.message.spec.network.deny_egress, sandbox.message.spec.network.deny_ingress],
                commands=len(sandbox.commands),
            )
            for sandbox in living
        ],
        sandboxes_ever=sandboxes.ever,
        duplicates=sum(number - 1 for number in names.values()),
        requests=dict(service.requests),
        faults=dict(sandboxes.random.hits),
        seen=service.seen,
    )


class CoreWeaveServer:
    """Asynchronous context manager that serves in the current event loop, and ends every sandbox on exit.

    Attributes:
        environment: Variables with which the SDK uses this server; empty before the start.
    """

    def __init__(self, config: CoreWeaveConfig, *, port: int = 0) -> None:
        self._key = config.api_key or f"loopback-{secrets.token_hex(16)}"
        self._port = port
        self._sandboxes = CoreWeaveSandboxes(config)
        self._server: Any = None
        self.environment: dict[str, str] = {}

    async def __aenter__(self) -> CoreWeaveServer:
        service = SandboxService(self._sandboxes, self._key)
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        self._server.add_generic_rpc_handlers((_control_handler(self._sandboxes, service),))
        try:
            port = self._server.add_insecure_port(f"{HOST}:{self._port}")
        except RuntimeError as error:  # grpc's error for a port that is in use
            raise OSError(str(error)) from None
        await self._server.start()
        self.environment = {"CWSANDBOX_BASE_URL": f"http://{HOST}:{port}", "CWSANDBOX_API_KEY": self._key}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sandboxes.close()
        await self._server.stop(grace=None)


class LoopbackCoreWeave(LoopbackService):
    """CoreWeave's sandbox service in a child process, with real processes of this machine in its sandboxes.

    ```python
    with LoopbackCoreWeave() as loopback:
        subprocess.run(["finqa", "sandbox", "ls", "--sandbox", "cwsandbox"], env={**os.environ, **loopback.environment})
    ```

    It ends with this process, also if this process is killed by SIGKILL. Its sandboxes isolate nothing: untrusted
    commands need a supervisor, as in the real sandboxes.
    """

    def __init__(self, config: CoreWeaveConfig | None = None) -> None:
        self.config = config or CoreWeaveConfig()
        super().__init__("coreweave", self.config, proof="CWSANDBOX_API_KEY")

    @property
    def api_key(self) -> str:
        """The key that the service accepts."""
        return self.environment["CWSANDBOX_API_KEY"]

    @property
    def control(self) -> CoreWeaveControl:
        """Client for statistics and for faults on demand."""
        return CoreWeaveControl(urlsplit(self.environment["CWSANDBOX_BASE_URL"]).netloc)
