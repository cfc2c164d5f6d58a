"""The account: its sandboxes, images, limits and counters, and the timer that ends sandboxes in time."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from finqa_testing.daytona.config import LoopbackConfig
from finqa_testing.daytona.http_service import Refusal
from finqa_testing.daytona.loopback_sandboxes import USES_CPU, LoopbackImage, LoopbackSandbox
from finqa_testing.daytona.sandbox_commands import Servers
from finqa_testing.random_streams import RandomStreams

DEFAULT_IMAGE = "daytonaio/sandbox"
LONGEST_TICK_S = 0.25
UPGRADE = (
    "To increase concurrency limits, upgrade your organization's Tier by visiting "
    "https://app.daytona.io/dashboard/limits."
)


@dataclass(slots=True)
class Window:
    """Limits create requests to at most `limit` in any window of `window_s` seconds; 0 means no limit.

    Attributes:
        busiest: The most create requests that any window has contained.
    """

    limit: int
    window_s: float
    busiest: int = 0
    _taken: deque[float] = field(default_factory=deque)

    def take(self, now: float) -> bool:
        """Counts a create request; returns False and does not count it if the window is full."""
        self._forget(now)
        if self.limit and len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        self.busiest = max(self.busiest, len(self._taken))
        return True

    def headers(self, now: float) -> dict[str, str]:
        """Returns the headers that Daytona sends about the limit (its documentation, Limits, 2026-07)."""
        if not self.limit:
            return {}
        self._forget(now)
        return {
            "X-RateLimit-Limit-sandbox-create": str(self.limit),
            "X-RateLimit-Remaining-sandbox-create": str(max(0, self.limit - len(self._taken))),
            "X-RateLimit-Reset-sandbox-create": str(self.wait(now)),
        }

    def wait(self, now: float) -> int:
        """Returns the whole seconds, at least 1, until the oldest create request leaves the window."""
        return max(1, -int(-(self._taken[0] + self.window_s - now) // 1)) if self._taken else 1

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0] <= now - self.window_s:
            self._taken.popleft()


@dataclass(slots=True)
class Counters:
    """Counts since the start.

    Attributes:
        started: Unix time of the start.
        requests: `METHOD /route` -> status -> number; status 0 is a dropped connection or a hang.
        creates: Number of create requests by outcome: accepted, limited because the window was full, refused.
        name_conflicts: Number of create requests that were refused because a living sandbox has the name.
        sandboxes: Number of sandboxes ever created.
        most_sandboxes: Most sandboxes at once.
        unauthorised: Number of requests with a wrong key.
        websockets: Number of preview WebSockets that were ever open.
        websockets_open: Number of preview WebSockets that are open.
        websockets_most: Most preview WebSockets at once.
    """

    started: float = field(default_factory=time.time)
    requests: dict[str, Counter[int]] = field(default_factory=dict)
    creates: Counter[str] = field(default_factory=Counter)
    name_conflicts: int = 0
    sandboxes: int = 0
    most_sandboxes: int = 0
    unauthorised: int = 0
    websockets: int = 0
    websockets_open: int = 0
    websockets_most: int = 0

    def request(self, route: str, status: int) -> None:
        """Counts a request by route and status of the answer."""
        self.requests.setdefault(route, Counter())[status] += 1

    def upgraded(self) -> None:
        """Counts a preview WebSocket that opened."""
        self.websockets += 1
        self.websockets_open += 1
        self.websockets_most = max(self.websockets_most, self.websockets_open)


class Account:
    """The whole state of the service, used from one event loop only.

    Attributes:
        images: Images by id.
        sandboxes: Sandboxes by id that live or are being destroyed.
        listed: Sandboxes that the list may show: living ones and those that were destroyed a short while ago.
        tokens: Preview token -> (sandbox id, port, Unix time at which it expires).
    """

    def __init__(self, config: LoopbackConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.random = RandomStreams(config.seed)
        self.counters = Counters()
        self.window = Window(config.create_limit, config.create_window_s)
        self.servers = Servers(folder, config.servers)
        self.images: dict[str, LoopbackImage] = {}
        self.sandboxes: dict[str, LoopbackSandbox] = {}
        self.listed: dict[str, LoopbackSandbox] = {}
        self.tokens: dict[str, tuple[str, int, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._add_image(DEFAULT_IMAGE, {})
        for name, path in config.images.items():
            self._add_image(name, {config.image_folder: path.absolute()})

    def _add_image(self, name: str, mounts: dict[str, Path]) -> None:
        image = LoopbackImage(self.random.identifier(), name, mounts=mounts, broken=name in self.config.broken_images)
        self.images[image.id] = image

    def image(self, id_or_name: str, *, unknown: int = 404) -> LoopbackImage:
        """Returns an image by id or name.

        Raises:
            Refusal: There is none; `unknown` is the status.
        """
        if id_or_name in self.images:
            return self.images[id_or_name]
        for image in self.images.values():
            if image.name == id_or_name:
                return image
        raise Refusal(unknown, f"Snapshot {id_or_name} not found. Did you add it through the Daytona Dashboard?")

    def forget_image(self, image: LoopbackImage) -> None:
        """Removes an image; sandboxes that were created from it continue."""
        self.images.pop(image.id, None)

    def sandbox(self, id_or_name: str) -> LoopbackSandbox:
        """Returns a sandbox by id or name; a destroyed one is not found.

        Raises:
            Refusal: There is none; status 404.
        """
        found = self.sandboxes.get(id_or_name) or self.named(id_or_name)
        if found is None:
            raise Refusal(404, f"Sandbox with ID or name {id_or_name} not found")
        return found

    def named(self, name: str) -> LoopbackSandbox | None:
        """Returns the sandbox with this name; None if there is none."""
        return next((sandbox for sandbox in self.sandboxes.values() if sandbox.name == name), None)

    def check_quota(self, image: LoopbackImage) -> None:
        """Checks that the resources suffice for one more sandbox.

        Raises:
            Refusal: A resource is exhausted; status 403, with Daytona's message.
        """
        used, quota = self.used(), self.config.quota
        wanted = {"CPU": (image.cpu, quota.cpu), "memory": (image.memory_gib, quota.memory_gib)}
        wanted["disk"] = (image.disk_gib, quota.disk_gib)
        for name, (amount, limit) in wanted.items():
            if used[name] + amount > limit:
                unit = "" if name == "CPU" else "GiB"
                raise Refusal(403, f"Total {name} limit exceeded. Maximum allowed: {limit}{unit}.\n{UPGRADE}")

    def used(self) -> dict[str, int]:
        """Returns the resources in use: CPU and memory of sandboxes that run or start, disk of all."""
        running = [sandbox.image for sandbox in self.sandboxes.values() if sandbox.state in USES_CPU]
        return {
            "CPU": sum(image.cpu for image in running),
            "memory": sum(image.memory_gib for image in running),
            "disk": sum(sandbox.image.disk_gib for sandbox in self.sandboxes.values()),
        }

    def add_sandbox(
        self, name: str, image: LoopbackImage, labels: Mapping[str, str], environment: Mapping[str, str]
    ) -> LoopbackSandbox:
        """Adds a sandbox in the state `creating`."""
        now = time.time()
        identifier = self.random.identifier()
        sandbox = LoopbackSandbox(
            identifier,
            name or identifier,
            image,
            dict(labels),
            dict(environment),
            now,
            self.folder / "sandboxes" / identifier,
        )
        sandbox.touch()
        sandbox.listed = now + self.config.stale_list_s
        self.sandboxes[identifier] = self.listed[identifier] = sandbox
        self.counters.sandboxes += 1
        self.counters.most_sandboxes = max(self.counters.most_sandboxes, len(self.sandboxes))
        return sandbox

    def destroy(self, sandbox: LoopbackSandbox) -> None:
        """Ends a sandbox, which is `destroying` for a while and then removed. Idempotent."""
        if sandbox.ended:
            return
        sandbox.die("destroying")
        sandbox.stopped = time.time()
        self.later(self.random.seconds("delete", self.config.latency.delete), lambda: self._forget(sandbox))

    def _forget(self, sandbox: LoopbackSandbox) -> None:
        sandbox.state = "destroyed"
        sandbox.vanished = time.time()
        self.sandboxes.pop(sandbox.id, None)
        shutil.rmtree(sandbox.folder, ignore_errors=True)
        if not self.config.stale_list_s:
            self.listed.pop(sandbox.id, None)

    def stop(self, sandbox: LoopbackSandbox) -> None:
        """Stops a sandbox; an ephemeral one is destroyed."""
        sandbox.die("stopped")
        sandbox.stopped = time.time()
        if sandbox.auto_delete == 0:
            self.destroy(sandbox)

    def kill(self, sandbox: LoopbackSandbox, leave: str = "error") -> None:
        """Kills a sandbox as if it had failed by itself.

        Args:
            sandbox: The sandbox.
            leave: State that the API shows from then on: `error`, as Daytona does after a while; `started`, as it does
                at first (in both cases the owner must delete the sandbox); `destroyed`: the sandbox is removed.
        """
        if sandbox.ended:
            return
        if leave == "destroyed":
            self.destroy(sandbox)
            return
        sandbox.error = "" if leave == "started" else "The sandbox died (injected fault)"
        sandbox.die(leave)

    def visible(self) -> list[LoopbackSandbox]:
        """Returns the sandboxes that the list shows, oldest first; a stale list shows both starts and ends late."""
        now = time.time()
        shown = [sandbox for sandbox in self.listed.values() if sandbox.listed <= now]
        return sorted(shown, key=lambda sandbox: (sandbox.created, sandbox.id))

    def chosen(self, ids: Iterable[str] | None, share: float | None) -> list[LoopbackSandbox]:
        """Returns the running sandboxes with these ids or names, or a random share of all running ones, or all."""
        running = [sandbox for sandbox in self.sandboxes.values() if sandbox.state == "started"]
        if ids is not None:
            wanted = set(ids)
            return [sandbox for sandbox in running if sandbox.id in wanted or sandbox.name in wanted]
        if share is None:
            return running
        return self.random.stream("chosen").sample(running, round(share * len(running)))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls a function after some seconds, or at once for 0."""
        if seconds <= 0:
            action()
            return

        async def wait() -> None:
            await asyncio.sleep(seconds)
            action()

        self.run(wait())

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Runs a coroutine in its own task, which `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_time(self) -> None:
        """Ends sandboxes and tokens at their time, until it is cancelled."""
        while True:
            await asyncio.sleep(min(LONGEST_TICK_S, self.config.minute_s / 4))
            self._tick(time.time())

    def _tick(self, now: float) -> None:
        minute = self.config.minute_s
        for sandbox in list(self.sandboxes.values()):
            if sandbox.due and now >= sandbox.due:
                self.destroy(sandbox)
            elif (
                sandbox.state == "started" and sandbox.auto_stop and now - sandbox.active >= sandbox.auto_stop * minute
            ):
                self.stop(sandbox)
            elif (
                sandbox.state == "stopped"
                and sandbox.auto_delete > 0
                and now - sandbox.stopped >= sandbox.auto_delete * minute
            ):
                self.destroy(sandbox)
        if self.config.stale_list_s:
            gone = [
                sandbox.id
                for sandbox in self.listed.values()
                if sandbox.vanished and now >= sandbox.vanished + self.config.stale_list_s
            ]
            for identifier in gone:
                del self.listed[identifier]
        for token in [token for token, (*_, end) in self.tokens.items() if end <= now]:
            del self.tokens[token]

    async def close(self) -> None:
        """Ends every sandbox, timer and process."""
        for task in list(self._tasks):
            task.cancel()
        for sandbox in list(self.sandboxes.values()):
            sandbox.die("destroyed")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.servers.close()
