"""The account: its boxes, images and limits, and the clock that ends what is due."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from finqa_cli.testing.daytona.config import LoopbackConfig
from finqa_cli.testing.daytona.counters import Counters, Window
from finqa_cli.testing.daytona.dice import Dice
from finqa_cli.testing.daytona.http_messages import Refusal
from finqa_cli.testing.daytona.loopback_images import Image
from finqa_cli.testing.daytona.loopback_sandboxes import HOLDS_CPU, Box
from finqa_cli.testing.daytona.servers import Servers

DEFAULT_IMAGE = "daytonaio/sandbox"
LONGEST_TICK_S = 0.25
UPGRADE = (
    "To increase concurrency limits, upgrade your organization's Tier by visiting "
    "https://app.daytona.io/dashboard/limits."
)


class Account:
    """All state. Everything happens in one event loop.

    Attributes:
        images: By id.
        boxes: Living and ending boxes by id.
        listed: What the list may still show: living boxes and those destroyed a short while ago.
        tokens: Signed preview tokens -> (box id, port, Unix time of their end).
    """

    def __init__(self, config: LoopbackConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.dice = Dice(config.seed)
        self.counters = Counters()
        self.window = Window(config.create_limit, config.create_window_s)
        self.servers = Servers(folder, config.servers)
        self.images: dict[str, Image] = {}
        self.boxes: dict[str, Box] = {}
        self.listed: dict[str, Box] = {}
        self.tokens: dict[str, tuple[str, int, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._add_image(DEFAULT_IMAGE, {})
        for name, path in config.images.items():
            self._add_image(name, {config.image_folder: path.absolute()})

    def _add_image(self, name: str, mounts: dict[str, Path]) -> None:
        image = Image(self.dice.identifier(), name, mounts=mounts, broken=name in self.config.broken_images)
        self.images[image.id] = image

    def image(self, id_or_name: str, *, unknown: int = 404) -> Image:
        """An image by id or name.

        Raises:
            Refusal: There is none; `unknown` is the status.
        """
        if id_or_name in self.images:
            return self.images[id_or_name]
        for image in self.images.values():
            if image.name == id_or_name:
                return image
        raise Refusal(unknown, f"Snapshot {id_or_name} not found. Did you add it through the Daytona Dashboard?")

    def forget_image(self, image: Image) -> None:
        """An image is gone; boxes that were made from it live on."""
        self.images.pop(image.id, None)

    def box(self, id_or_name: str) -> Box:
        """A box by id or name; what is destroyed is not found.

        Raises:
            Refusal: There is none; status 404.
        """
        box = self.boxes.get(id_or_name) or self.named(id_or_name)
        if box is None:
            raise Refusal(404, f"Sandbox with ID or name {id_or_name} not found")
        return box

    def named(self, name: str) -> Box | None:
        """The living box of this name."""
        return next((box for box in self.boxes.values() if box.name == name), None)

    def check_quota(self, image: Image) -> None:
        """Refuses a box for which a resource is used up, in Daytona's words; status 403.

        Raises:
            Refusal: It is.
        """
        used, quota = self.used(), self.config.quota
        wanted = {"CPU": (image.cpu, quota.cpu), "memory": (image.memory_gib, quota.memory_gib)}
        wanted["disk"] = (image.disk_gib, quota.disk_gib)
        for name, (amount, limit) in wanted.items():
            if used[name] + amount > limit:
                unit = "" if name == "CPU" else "GiB"
                raise Refusal(403, f"Total {name} limit exceeded. Maximum allowed: {limit}{unit}.\n{UPGRADE}")

    def used(self) -> dict[str, int]:
        """CPU and memory of boxes that run or start, disk of all."""
        running = [box.image for box in self.boxes.values() if box.state in HOLDS_CPU]
        return {
            "CPU": sum(image.cpu for image in running),
            "memory": sum(image.memory_gib for image in running),
            "disk": sum(box.image.disk_gib for box in self.boxes.values()),
        }

    def make(self, name: str, image: Image, labels: Mapping[str, str], environment: Mapping[str, str]) -> Box:
        """Adds a box in the state `creating`."""
        now = time.time()
        identifier = self.dice.identifier()
        box = Box(
            identifier,
            name or identifier,
            image,
            dict(labels),
            dict(environment),
            now,
            self.folder / "boxes" / identifier,
        )
        box.touch()
        box.listed = now + self.config.stale_list_s
        self.boxes[identifier] = self.listed[identifier] = box
        self.counters.boxes += 1
        self.counters.most_boxes = max(self.counters.most_boxes, len(self.boxes))
        return box

    def destroy(self, box: Box) -> None:
        """Ends a box: `destroying` for a while, then gone. Idempotent."""
        if box.ended:
            return
        box.die("destroying")
        self.later(self.dice.seconds("delete", self.config.latency.delete), lambda: self._forget(box))

    def _forget(self, box: Box) -> None:
        box.state = "destroyed"
        box.vanished = time.time()
        self.boxes.pop(box.id, None)
        shutil.rmtree(box.folder, ignore_errors=True)
        if not self.config.stale_list_s:
            self.listed.pop(box.id, None)

    def stop(self, box: Box) -> None:
        """Stops a box; an ephemeral one is destroyed."""
        box.die("stopped")
        box.stopped = time.time()
        if box.auto_delete == 0:
            self.destroy(box)

    def kill(self, box: Box, leave: str = "error") -> None:
        """A box dies by itself.

        Args:
            box: The box.
            leave: What the API shows from then on: `error`, as Daytona does after a while; `started`, as it does at
                first (the box must be deleted by its owner in both); `destroyed`: gone.
        """
        if box.ended:
            return
        if leave == "destroyed":
            self.destroy(box)
            return
        box.error = "" if leave == "started" else "The sandbox died (injected fault)"
        box.die(leave)

    def visible(self) -> list[Box]:
        """Boxes as the list shows them, oldest first: late in both directions when the list is stale."""
        now = time.time()
        shown = [box for box in self.listed.values() if box.listed <= now]
        return sorted(shown, key=lambda box: (box.created, box.id))

    def chosen(self, ids: Iterable[str] | None, share: float | None) -> list[Box]:
        """Running boxes by id or name, or a random share of all; without both all of them."""
        running = [box for box in self.boxes.values() if box.state == "started"]
        if ids is not None:
            wanted = set(ids)
            return [box for box in running if box.id in wanted or box.name in wanted]
        if share is None:
            return running
        return self.dice.stream("chosen").sample(running, round(share * len(running)))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something after a while, at once for 0."""
        if seconds <= 0:
            action()
            return

        async def wait() -> None:
            await asyncio.sleep(seconds)
            action()

        task = asyncio.get_running_loop().create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def run(self, work: asyncio.Task[None]) -> None:
        """Keeps a task until it ends, or until the account is closed."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def keep_time(self) -> None:
        """Ends what is due, for ever."""
        while True:
            await asyncio.sleep(min(LONGEST_TICK_S, self.config.minute_s / 4))
            self._tick(time.time())

    def _tick(self, now: float) -> None:
        minute = self.config.minute_s
        for box in list(self.boxes.values()):
            if box.due and now >= box.due:
                self.destroy(box)
            elif box.state == "started" and box.auto_stop and now - box.active >= box.auto_stop * minute:
                self.stop(box)
            elif box.state == "stopped" and box.auto_delete > 0 and now - box.stopped >= box.auto_delete * minute:
                self.destroy(box)
        if self.config.stale_list_s:
            gone = [
                box.id
                for box in self.listed.values()
                if box.vanished and now >= box.vanished + self.config.stale_list_s
            ]
            for identifier in gone:
                del self.listed[identifier]
        for token in [token for token, (*_, end) in self.tokens.items() if end <= now]:
            del self.tokens[token]

    async def close(self) -> None:
        """Ends every box, timer and process."""
        for task in list(self._tasks):
            task.cancel()
        for box in list(self.boxes.values()):
            box.die("destroyed")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.servers.close()
