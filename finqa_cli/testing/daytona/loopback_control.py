"""The control of a running loopback Daytona: what happened in it, and accidents at the press of a button."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from finqa_cli.testing.daytona.config import Faults
from finqa_cli.testing.daytona.listener import HOST

TIMEOUT_S = 30.0
Death = Literal["destroyed", "error", "started"]


class Stats(TypedDict):
    """What `stats()` returns.

    Attributes:
        up_s, cpu_s, rss_mib: Age, CPU seconds and memory of the process that the loopback runs in.
        requests: `METHOD /route` -> status -> number; status 0: cut connections and hangs.
        creates: Creates that were `accepted`, `limited` (429 because the window was full; injected ones stand in
            `faults`) and `refused` for another reason.
        busiest_window: The most accepted creates that any sliding window of `create_window_s` has held.
        name_conflicts: Creates refused because a living box has the name.
        duplicates: Living boxes that share their name with another; 0 as long as names are given by the client.
        boxes, boxes_ever, boxes_most: Boxes that are not gone; ever made; most at once.
        boxes_by_state: Daytona's words, and `frozen`.
        boxes_by_label: `name=value` -> living boxes.
        websockets, websockets_open, websockets_most: Preview WebSockets upgraded so far, open, most at once.
        faults: Injected faults by kind.
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
    boxes: int
    boxes_ever: int
    boxes_most: int
    boxes_by_state: dict[str, int]
    boxes_by_label: dict[str, int]
    websockets: int
    websockets_open: int
    websockets_most: int
    faults: dict[str, int]
    servers: list[int]


class Control:
    """Blocking calls, for code without an event loop. Called from the loop that the loopback runs in, they hang.

    `ids` takes ids or names; `share` a random share of the running boxes, by the loopback's seed; without both all of
    them are meant. Each call returns the ids that were hit.
    """

    def __init__(self, port: int, api_key: str) -> None:
        self._port = port
        self._api_key = api_key

    def stats(self) -> Stats:
        """Everything that is counted."""
        stats: Stats = self._call("GET", "/control/stats", None)
        return stats

    def sandboxes(self) -> list[dict[str, Any]]:
        """Boxes that are not gone: id, name, state, frozen, labels, created, connections, image, environment."""
        boxes: list[dict[str, Any]] = self._call("GET", "/control/sandboxes", None)
        return boxes

    def kill(
        self, ids: Sequence[str] | None = None, *, share: float | None = None, leave: Death = "error"
    ) -> list[str]:
        """Boxes die and their open connections are reset.

        `leave` is what the API shows from then on: `error` or `started` (they must be deleted), or `destroyed` (gone).
        """
        hit: list[str] = self._call("POST", "/control/kill", {**_chosen(ids, share), "leave": leave})
        return hit

    def freeze(self, ids: Sequence[str] | None = None, *, share: float | None = None) -> list[str]:
        """Boxes answer nothing any more, on open connections too; the API goes on showing them as started."""
        hit: list[str] = self._call("POST", "/control/freeze", _chosen(ids, share))
        return hit

    def thaw(self, ids: Sequence[str] | None = None) -> list[str]:
        """Frozen boxes answer again."""
        hit: list[str] = self._call("POST", "/control/thaw", _chosen(ids, None))
        return hit

    def expire_urls(self) -> None:
        """Every preview URL given out so far answers 401; open connections stay."""
        self._call("POST", "/control/expire", {})

    def set_faults(self, faults: Faults) -> None:
        """Replaces the shares of faults from now on."""
        self._call("POST", "/control/faults", faults.model_dump())

    def set_build_fails(self, reason: str) -> None:
        """Builds of images fail with this reason from now on; empty: they succeed."""
        self._call("POST", "/control/builds", {"fail": reason})

    def break_image(self, name: str) -> None:
        """Servers of this image exit at start from now on."""
        self._call("POST", "/control/break", {"name": name})

    def set_snapshot_state(self, name: str, state: str) -> None:
        """Sets an image's state, such as `inactive`."""
        self._call("POST", "/control/snapshot-state", {"name": name, "state": state})

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Authorization": f"Bearer {self._api_key}"})
            response = connection.getresponse()
            return _decoded(response.status, response.read())
        finally:
            connection.close()


class AsyncControl:
    """The same calls for an event loop, that of the loopback included; `Control` says what they do."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def stats(self) -> Stats:
        """Everything that is counted."""
        return await asyncio.to_thread(self._control.stats)

    async def sandboxes(self) -> list[dict[str, Any]]:
        """Boxes that are not gone."""
        return await asyncio.to_thread(self._control.sandboxes)

    async def kill(
        self, ids: Sequence[str] | None = None, *, share: float | None = None, leave: Death = "error"
    ) -> list[str]:
        """Boxes die and their open connections are reset."""
        return await asyncio.to_thread(self._control.kill, ids, share=share, leave=leave)

    async def freeze(self, ids: Sequence[str] | None = None, *, share: float | None = None) -> list[str]:
        """Boxes answer nothing any more."""
        return await asyncio.to_thread(self._control.freeze, ids, share=share)

    async def thaw(self, ids: Sequence[str] | None = None) -> list[str]:
        """Frozen boxes answer again."""
        return await asyncio.to_thread(self._control.thaw, ids)

    async def expire_urls(self) -> None:
        """Every preview URL given out so far answers 401."""
        await asyncio.to_thread(self._control.expire_urls)

    async def set_faults(self, faults: Faults) -> None:
        """Replaces the shares of faults from now on."""
        await asyncio.to_thread(self._control.set_faults, faults)

    async def set_build_fails(self, reason: str) -> None:
        """Builds of images fail with this reason from now on; empty: they succeed."""
        await asyncio.to_thread(self._control.set_build_fails, reason)

    async def break_image(self, name: str) -> None:
        """Servers of this image exit at start from now on."""
        await asyncio.to_thread(self._control.break_image, name)

    async def set_snapshot_state(self, name: str, state: str) -> None:
        """Sets an image's state."""
        await asyncio.to_thread(self._control.set_snapshot_state, name, state)


def _chosen(ids: Sequence[str] | None, share: float | None) -> dict[str, object]:
    return {"ids": list(ids)} if ids is not None else {"share": share} if share is not None else {}


def _decoded(status: int, content: bytes) -> Any:
    body = json.loads(content) if content else None
    if status >= 400:
        raise ValueError(f"The control refused it ({status}): {body}")
    return body
