"""`/control` of a loopback Daytona and its clients: statistics, and faults on demand."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from finqa_testing.daytona.account import Account
from finqa_testing.daytona.config import Faults
from finqa_testing.daytona.http_service import HOST, Endpoint, Refusal, json_body, text
from finqa_testing.daytona.loopback_sandboxes import LoopbackSandbox

TIMEOUT_S = 30.0
Death = Literal["destroyed", "error", "started"]


class Stats(TypedDict):
    """The statistics that `stats()` returns.

    Attributes:
        up_s, cpu_s, rss_mib: Age of the loopback, CPU seconds and memory of its process.
        requests: `METHOD /route` -> status -> number; status 0 is a dropped connection or a hang.
        unauthorised: Number of requests with a wrong key.
        creates: Number of create requests that were `accepted`, `limited` (429 because the window was full; injected
            ones are in `faults`) and `refused` for another reason.
        busiest_window: The most create requests that any sliding window of `create_window_s` has contained.
        name_conflicts: Number of create requests that were refused because a living sandbox has the name.
        duplicates: Number of living sandboxes beyond the first with the same name; always 0, because a name that is in
            use is refused.
        sandboxes, sandboxes_ever, sandboxes_most: Number of sandboxes that exist, that were ever created, and most at
            once.
        sandboxes_by_state: Number of sandboxes by state in Daytona's terms, or `frozen`.
        sandboxes_by_label: `name=value` -> number of existing sandboxes.
        websockets, websockets_open, websockets_most: Number of preview WebSockets that were ever open, that are open,
            and most at once.
        faults: Number of injected faults by kind.
        servers: Process ids of the real servers.
    """

    up_s: float
    cpu_s: float
    rss_mib: float
    requests: dict[str, dict[str, int]]
    unauthorised: int
    creates: dict[str, int]
    busiest_window: int
    name_conflicts: int
    duplicates: int
    sandboxes: int
    sandboxes_ever: int
    sandboxes_most: int
    sandboxes_by_state: dict[str, int]
    sandboxes_by_label: dict[str, int]
    websockets: int
    websockets_open: int
    websockets_most: int
    faults: dict[str, int]
    servers: list[int]


class Control:
    """Client with blocking calls. In the event loop that the loopback runs in, a call would never return.

    `ids` are ids or names of running sandboxes; `share` is a random share of the running sandboxes, chosen by the
    loopback's seed; without both a call applies to all running ones. `kill`, `freeze` and `thaw` return the ids of the
    sandboxes that were affected.
    """

    def __init__(self, port: int, api_key: str) -> None:
        self._port = port
        self._api_key = api_key

    def stats(self) -> Stats:
        """Returns all statistics."""
        stats: Stats = self._call("GET", "/control/stats", None)
        return stats

    def sandboxes(self) -> list[dict[str, Any]]:
        """Returns the sandboxes that still exist.

        Keys: id, name, state, frozen, labels, created, connections, image, environment.
        """
        sandboxes: list[dict[str, Any]] = self._call("GET", "/control/sandboxes", None)
        return sandboxes

    def kill(
        self, ids: Sequence[str] | None = None, *, share: float | None = None, leave: Death = "error"
    ) -> list[str]:
        """Kills sandboxes and resets their open connections.

        `leave` is the state that the API shows from then on: `error` or `started` (the owner must delete them), or
        `destroyed` (they are removed).
        """
        hit: list[str] = self._call("POST", "/control/kill", {**_chosen(ids, share), "leave": leave})
        return hit

    def freeze(self, ids: Sequence[str] | None = None, *, share: float | None = None) -> list[str]:
        """Stops all answers of sandboxes, also on open connections; the API still shows them as started."""
        hit: list[str] = self._call("POST", "/control/freeze", _chosen(ids, share))
        return hit

    def thaw(self, ids: Sequence[str] | None = None) -> list[str]:
        """Ends the freeze of sandboxes."""
        hit: list[str] = self._call("POST", "/control/thaw", _chosen(ids, None))
        return hit

    def expire_urls(self) -> None:
        """Makes every preview URL that was returned so far answer 401; open connections stay."""
        self._call("POST", "/control/expire", {})

    def set_faults(self, faults: Faults) -> None:
        """Replaces the probabilities of faults from now on."""
        self._call("POST", "/control/faults", faults.model_dump())

    def set_build_fails(self, reason: str) -> None:
        """From now on, makes builds of images fail with this reason; with an empty one they succeed."""
        self._call("POST", "/control/builds", {"fail": reason})

    def break_image(self, name: str) -> None:
        """From now on, makes servers of this image exit at their start."""
        self._call("POST", "/control/break", {"name": name})

    def set_snapshot_state(self, name: str, state: str) -> None:
        """Sets the state of an image, such as `inactive`."""
        self._call("POST", "/control/snapshot-state", {"name": name, "state": state})

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Authorization": f"Bearer {self._api_key}"})
            response = connection.getresponse()
            return _decode(response.status, response.read())
        finally:
            connection.close()


class AsyncControl:
    """The calls of `Control` for use in an event loop, which may be that of the loopback."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def stats(self) -> Stats:
        """Returns all statistics."""
        return await asyncio.to_thread(self._control.stats)

    async def sandboxes(self) -> list[dict[str, Any]]:
        """Returns the sandboxes that still exist."""
        return await asyncio.to_thread(self._control.sandboxes)

    async def kill(
        self, ids: Sequence[str] | None = None, *, share: float | None = None, leave: Death = "error"
    ) -> list[str]:
        """Kills sandboxes and resets their open connections."""
        return await asyncio.to_thread(self._control.kill, ids, share=share, leave=leave)

    async def freeze(self, ids: Sequence[str] | None = None, *, share: float | None = None) -> list[str]:
        """Stops all answers of sandboxes."""
        return await asyncio.to_thread(self._control.freeze, ids, share=share)

    async def thaw(self, ids: Sequence[str] | None = None) -> list[str]:
        """Ends the freeze of sandboxes."""
        return await asyncio.to_thread(self._control.thaw, ids)

    async def expire_urls(self) -> None:
        """Makes every preview URL that was returned so far answer 401."""
        await asyncio.to_thread(self._control.expire_urls)

    async def set_faults(self, faults: Faults) -> None:
        """Replaces the probabilities of faults from now on."""
        await asyncio.to_thread(self._control.set_faults, faults)

    async def set_build_fails(self, reason: str) -> None:
        """From now on, makes builds of images fail with this reason; with an empty one they succeed."""
        await asyncio.to_thread(self._control.set_build_fails, reason)

    async def break_image(self, name: str) -> None:
        """From now on, makes servers of this image exit at their start."""
        await asyncio.to_thread(self._control.break_image, name)

    async def set_snapshot_state(self, name: str, state: str) -> None:
        """Sets the state of an image."""
        await asyncio.to_thread(self._control.set_snapshot_state, name, state)


def _chosen(ids: Sequence[str] | None, share: float | None) -> dict[str, object]:
    return {"ids": list(ids)} if ids is not None else {"share": share} if share is not None else {}


def _decode(status: int, content: bytes) -> Any:
    body = json.loads(content) if content else None
    if status >= 400:
        raise ValueError(f"The control refused the call ({status}): {body}")
    return body


class ControlApi:
    """Handlers of `/control` for one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def endpoints(self) -> list[Endpoint]:
        """Returns the routes."""
        return [
            ("GET", "/control/stats", self.stats),
            ("GET", "/control/sandboxes", self.sandboxes),
            ("POST", "/control/kill", self.kill),
            ("POST", "/control/freeze", self.freeze),
            ("POST", "/control/thaw", self.thaw),
            ("POST", "/control/expire", self.expire_urls),
            ("POST", "/control/faults", self.faults),
            ("POST", "/control/break", self.break_image),
            ("POST", "/control/builds", self.builds),
            ("POST", "/control/snapshot-state", self.snapshot_state),
        ]

    async def stats(self, _: Request) -> Response:
        """Returns all statistics."""
        account, counters = self._account, self._account.counters
        sandboxes = list(account.sandboxes.values())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        body = {
            "up_s": time.time() - counters.started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "rss_mib": _memory_mib(),
            "requests": {
                route: {str(status): number for status, number in sorted(found.items())}
                for route, found in sorted(counters.requests.items())
            },
            "unauthorised": counters.unauthorised,
            "creates": {"accepted": 0, "limited": 0, "refused": 0, **counters.creates},
            "busiest_window": account.window.busiest,
            "name_conflicts": counters.name_conflicts,
            "duplicates": sum(number - 1 for number in Counter(sandbox.name for sandbox in sandboxes).values()),
            "sandboxes": len(sandboxes),
            "sandboxes_ever": counters.sandboxes,
            "sandboxes_most": counters.most_sandboxes,
            "sandboxes_by_state": dict(Counter("frozen" if sandbox.frozen else sandbox.state for sandbox in sandboxes)),
            "sandboxes_by_label": dict(
                Counter(f"{name}={value}" for sandbox in sandboxes for name, value in sandbox.labels.items())
            ),
            "websockets": counters.websockets,
            "websockets_open": counters.websockets_open,
            "websockets_most": counters.websockets_most,
            "faults": dict(account.random.hits),
            "servers": [server.pid for server in account.servers.all() if server.exit_code() is None],
        }
        return JSONResponse(body)

    async def sandboxes(self, _: Request) -> Response:
        """Returns all sandboxes that still exist, including those that a stale list hides."""
        return JSONResponse(
            [
                {
                    "id": sandbox.id,
                    "name": sandbox.name,
                    "state": sandbox.state,
                    "frozen": sandbox.frozen,
                    "labels": sandbox.labels,
                    "created": sandbox.created,
                    "connections": len(sandbox.links),
                    "image": sandbox.image.name,
                    "environment": dict(sandbox.environment),
                }
                for sandbox in self._account.sandboxes.values()
            ]
        )

    async def kill(self, request: Request) -> Response:
        """Kills sandboxes and resets their open connections."""
        leave = (await json_body(request)).get("leave", "error")
        if leave not in get_args(Death):
            raise Refusal(400, f"leave must be one of {', '.join(get_args(Death))}")
        chosen = await self._choose(request)
        for sandbox in chosen:
            self._account.kill(sandbox, leave)
        return _ids(chosen)

    async def freeze(self, request: Request) -> Response:
        """Stops all answers of sandboxes, also on open connections."""
        chosen = [sandbox for sandbox in await self._choose(request) if not sandbox.frozen and not sandbox.dead]
        for sandbox in chosen:
            sandbox.freeze()
        return _ids(chosen)

    async def thaw(self, request: Request) -> Response:
        """Ends the freeze of sandboxes."""
        chosen = [sandbox for sandbox in await self._choose(request) if sandbox.frozen]
        for sandbox in chosen:
            sandbox.thaw()
        return _ids(chosen)

    async def expire_urls(self, _: Request) -> Response:
        """Makes every preview URL that was returned so far invalid; open connections stay."""
        number = len(self._account.tokens)
        self._account.tokens.clear()
        return JSONResponse({"expired": number})

    async def faults(self, request: Request) -> Response:
        """Replaces the probabilities of faults."""
        try:
            faults = Faults.model_validate(await json_body(request))
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        self._account.config = self._account.config.model_copy(update={"faults": faults})
        return JSONResponse(faults.model_dump())

    async def builds(self, request: Request) -> Response:
        """Sets the reason with which builds fail; with an empty one they succeed."""
        reason = text(await json_body(request), "fail")
        self._account.config = self._account.config.model_copy(update={"build_fails": reason})
        return Response()

    async def break_image(self, request: Request) -> Response:
        """From now on, makes servers of this image exit at their start."""
        self._account.image(text(await json_body(request), "name")).broken = True
        return Response()

    async def snapshot_state(self, request: Request) -> Response:
        """Sets the state of an image."""
        body = await json_body(request)
        image = self._account.image(text(body, "name"))
        image.state = text(body, "state")
        image.notify()
        return Response()

    async def _choose(self, request: Request) -> list[LoopbackSandbox]:
        body = await json_body(request)
        ids, share = body.get("ids"), body.get("share")
        if ids is not None and not isinstance(ids, list):
            raise Refusal(400, "ids must be a list")
        if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
            raise Refusal(400, "share must be between 0 and 1")
        return self._account.chosen(ids, share)


def _memory_mib() -> float:
    """Returns the memory that this process uses, in MiB; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / 2**20


def _ids(sandboxes: list[LoopbackSandbox]) -> Response:
    return JSONResponse([sandbox.id for sandbox in sandboxes])
