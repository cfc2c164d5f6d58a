"""`/api/snapshots`: images made, shown, activated and deleted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.body_fields import number, text, texts_list, whole
from finqa_cli.testing.daytona.http_messages import Refusal, Reply, Request
from finqa_cli.testing.daytona.image_build import build
from finqa_cli.testing.daytona.loopback_images import Image
from finqa_cli.testing.daytona.router import Router
from finqa_cli.testing.daytona.storage import Storage

PAGE = 100
SDK_POLL_S = 1.0
FOLLOWED = ("pending", "building")


class SnapshotApi:
    """Handlers; `origin` is `http://127.0.0.1:PORT`."""

    def __init__(self, account: Account, storage: Storage, origin: str) -> None:
        self._account = account
        self._storage = storage
        self._origin = origin

    def register(self, router: Router) -> None:
        """Adds the routes."""
        router.add("POST", "/api/snapshots", self.create)
        router.add("GET", "/api/snapshots", self.list)
        router.add("GET", "/api/snapshots/{image}", self.get)
        router.add("DELETE", "/api/snapshots/{image}", self.delete)
        router.add("POST", "/api/snapshots/{image}/activate", self.activate)
        router.add("POST", "/api/snapshots/{image}/deactivate", self.deactivate)
        router.add("GET", "/api/snapshots/{image}/build-logs-url", self.logs_url)
        router.add("GET", "/api/snapshots/{image}/build-logs", self.logs)
        router.add("GET", "/api/object-storage/push-access", self._storage.push_access)

    async def create(self, request: Request) -> Reply:
        """Begins to build an image from a Dockerfile; of a registry's image a box without files is made."""
        body = request.json()
        name = text(body, "name")
        if not name:
            raise Refusal(400, "name is required")
        if any(image.name == name for image in self._account.images.values()):
            raise Refusal(409, f'Snapshot with name "{name}" already exists for this organization')
        # The SDK follows the log of what is building only, and a quick build is over when it looks for the second time.
        state = "pending" if self._account.config.latency.build.median_s > SDK_POLL_S else "building"
        image = Image(self._account.dice.identifier(), name, state=state)
        image.cpu, image.memory_gib = number(body, "cpu", 1), number(body, "memory", 1)
        image.disk_gib = number(body, "disk", 3)
        image.broken = name in self._account.config.broken_images
        recipe = body.get("buildInfo")
        if isinstance(recipe, dict):
            image.dockerfile = text(recipe, "dockerfileContent")
            image.contexts = texts_list(recipe, "contextHashes")
        elif reference := text(body, "imageName"):
            image.dockerfile = f"FROM {reference}"
        else:
            raise Refusal(400, "buildInfo or imageName is required")
        self._account.images[image.id] = image
        self._account.run(asyncio.get_running_loop().create_task(build(self._account, self._storage, image)))
        return Reply(body=image.dto())

    async def list(self, request: Request) -> Reply:
        """Images page by page, newest first."""
        images = sorted(self._account.images.values(), key=lambda image: -image.created)
        page, limit = whole(request.query("page") or "1", "page"), whole(request.query("limit") or str(PAGE), "limit")
        if page < 1 or limit < 1:
            raise Refusal(400, "page and limit must be positive")
        body = {
            "items": [image.dto() for image in images[(page - 1) * limit : page * limit]],
            "total": len(images),
            "page": page,
            "totalPages": max(1, math.ceil(len(images) / limit)),
        }
        return Reply(body=body)

    async def get(self, _: Request, image: str) -> Reply:
        """One image, by id or name."""
        return Reply(body=self._account.image(image).dto())

    async def delete(self, _: Request, image: str) -> Reply:
        """Begins to delete it; its name is taken until it is gone."""
        found = self._account.images.get(image)
        if found is None:
            raise Refusal(404, f"Snapshot {image} not found")
        if found.state != "removing":
            found.state = "removing"
            found.notify()
            delay = self._account.dice.seconds("delete", self._account.config.latency.delete)
            self._account.later(delay, lambda: self._account.forget_image(found))
        return Reply(200)

    async def activate(self, _: Request, image: str) -> Reply:
        """Makes an inactive image usable again."""
        return self._change(image, "inactive", "active")

    async def deactivate(self, _: Request, image: str) -> Reply:
        """The opposite."""
        self._change(image, "active", "inactive")
        return Reply(204)

    async def logs_url(self, request: Request, image: str) -> Reply:
        """Where its build's log is read."""
        found = self._account.image(image)
        return Reply(body={"url": f"{self._origin}/api/snapshots/{found.id}/build-logs"})

    async def logs(self, request: Request, image: str) -> Reply:
        """The build's log; with `follow=true` to the end of the build."""
        found = self._account.image(image)
        follow = request.query("follow") == "true"
        return Reply(headers={"Content-Type": "text/plain; charset=utf-8"}, stream=_lines(found, follow=follow))

    def _change(self, id_or_name: str, before: str, after: str) -> Reply:
        found = self._account.image(id_or_name)
        if found.state != before:
            raise Refusal(400, f"Snapshot {found.name} is {found.state}, not {before}")
        found.state = after
        return Reply(body=found.dto())


async def _lines(image: Image, *, follow: bool) -> AsyncIterator[bytes]:
    sent = 0
    while True:
        grown, over = image.grown, image.state not in FOLLOWED
        for line in image.log[sent:]:
            yield f"{line}\n".encode()
        sent = len(image.log)
        if over or not follow:
            return
        await grown.wait()
