"""`/api/sandbox`: the routes of the SDK 0.226.1 that make, show, change and end boxes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time

from finqa_cli.testing.daytona.account import DEFAULT_IMAGE, Account
from finqa_cli.testing.daytona.body_fields import number, text, texts, whole
from finqa_cli.testing.daytona.dockerfile import BuildError, parse
from finqa_cli.testing.daytona.http_messages import Cut, Refusal, Reply, Request
from finqa_cli.testing.daytona.loopback_images import Image
from finqa_cli.testing.daytona.loopback_sandboxes import Box
from finqa_cli.testing.daytona.router import Router

DEFAULT_URL_TTL_S = 60
PAGE = 100
COMING_UP = ("creating", "starting")
TOKEN_BYTES = 12


class SandboxApi:
    """Handlers; `origin` is `http://127.0.0.1:PORT`."""

    def __init__(self, account: Account, origin: str) -> None:
        self._account = account
        self._origin = origin
        self._toolbox = f"{origin}/toolbox"

    def register(self, router: Router) -> None:
        """Adds the routes."""
        box = "/api/sandbox/{box}"
        router.add("POST", "/api/sandbox", self.create)
        router.add("GET", "/api/sandbox", self.list)
        router.add("GET", box, self.get)
        router.add("DELETE", box, self.delete)
        router.add("POST", f"{box}/start", self.start)
        router.add("POST", f"{box}/stop", self.stop)
        router.add("PUT", f"{box}/labels", self.labels)
        router.add("POST", f"{box}/autostop/{{minutes}}", self.auto_stop)
        router.add("POST", f"{box}/autodelete/{{minutes}}", self.auto_delete)
        router.add("POST", f"{box}/autoarchive/{{minutes}}", self.auto_archive)
        router.add("POST", f"{box}/ttl/{{minutes}}", self.ttl)
        router.add("POST", f"{box}/last-activity", self.last_activity)
        router.add("GET", f"{box}/toolbox-proxy-url", self.toolbox_url)
        router.add("GET", f"{box}/ports/{{port}}/preview-url", self.preview_url)
        router.add("GET", f"{box}/ports/{{port}}/signed-preview-url", self.signed_url)
        router.add("POST", f"{box}/ports/{{port}}/signed-preview-url/{{token}}/expire", self.expire_url)

    async def create(self, request: Request) -> Reply:
        """Makes a box; the limit, the quota and the faults of creates apply."""
        account, faults, dice = self._account, self._account.config.faults, self._account.dice
        self._admit()
        try:
            box = self._make(request.json())
        except Refusal:
            account.counters.creates["refused"] += 1
            raise
        account.counters.creates["accepted"] += 1
        headers = account.window.headers(time.monotonic())
        await asyncio.sleep(dice.seconds("create", account.config.latency.create))
        self._come_up(box)
        if dice.hit("lost_reply", faults.lost_reply):
            raise Cut
        if dice.hit("late_error", faults.late_error):
            raise Refusal(504, "The gateway timed out (injected fault)")
        return self._reply(box, headers)

    def _admit(self) -> None:
        account, now = self._account, time.monotonic()
        if account.dice.hit("rate_limited", account.config.faults.rate_limited):
            wait = 1
        elif account.window.take(now):
            return
        else:
            wait = account.window.wait(now)
            account.counters.creates["limited"] += 1
        headers = {
            **account.window.headers(now),
            "Retry-After": str(wait),
            "Retry-After-sandbox-create": str(wait),
        }
        raise Refusal(429, "Rate limit exceeded", headers)

    def _make(self, body: dict[str, object]) -> Box:
        account = self._account
        if recipe := body.get("buildInfo"):
            image = self._stock_image(body, recipe)
        else:
            image = account.image(text(body, "snapshot") or DEFAULT_IMAGE, unknown=400)
        if image.state != "active":
            raise Refusal(400, f"Snapshot {image.name} is {image.state}")
        name = text(body, "name")
        if name and account.named(name) is not None:
            account.counters.name_conflicts += 1
            raise Refusal(409, f"Sandbox with name {name} already exists")
        labels, environment = texts(body, "labels"), texts(body, "env")
        auto_stop, auto_delete = number(body, "autoStopInterval", 15), number(body, "autoDeleteInterval", -1)
        ttl = number(body, "ttlMinutes", 0)
        account.check_quota(image)
        box = account.make(name, image, labels, environment)
        box.auto_stop, box.auto_delete, box.due = auto_stop, auto_delete, self._due(ttl)
        box.public, box.network_blocked = body.get("public") is True, body.get("networkBlockAll") is True
        box.user = text(body, "user") or box.user
        return box

    def _stock_image(self, body: dict[str, object], recipe: object) -> Image:
        """The image of one box, out of a Dockerfile without files of ours; nothing is pulled or built."""
        if not isinstance(recipe, dict) or recipe.get("contextHashes"):
            raise Refusal(400, "The loopback builds files into snapshots only; build the image as a snapshot first")
        dockerfile = text(recipe, "dockerfileContent")
        try:
            environment = parse(dockerfile).environment
        except BuildError as error:
            raise Refusal(400, str(error)) from None
        return Image(
            self._account.dice.identifier(),
            f"daytona-{hashlib.sha256(dockerfile.encode()).hexdigest()}",
            cpu=number(body, "cpu", 1),
            memory_gib=number(body, "memory", 1),
            disk_gib=number(body, "disk", 3),
            environment=environment,
            error=self._account.config.build_fails,
        )

    def _come_up(self, box: Box) -> None:
        """From `creating` to `started`, or to an error."""
        account = self._account
        failed = account.dice.hit("start_failed", account.config.faults.start_failed)

        def arrive() -> None:
            if box.state not in COMING_UP:
                return
            box.touch()
            if box.image.error:
                box.error = box.image.error
                box.die("build_failed")
            elif failed:
                box.error = "Failed to start the sandbox (injected fault)"
                box.die("error")
            else:
                box.state = "started"
                self._doom(box)

        account.later(account.dice.seconds("start", account.config.latency.start), arrive)

    def _doom(self, box: Box) -> None:
        """Throws the dice for a death or a frost of its own."""
        account, faults = self._account, self._account.config.faults
        if account.dice.hit("dies", faults.dies):
            account.later(account.dice.seconds("fault", faults.fault_after), lambda: account.kill(box))
        elif account.dice.hit("freezes", faults.freezes):
            account.later(account.dice.seconds("fault", faults.fault_after), box.freeze)

    async def list(self, request: Request) -> Reply:
        """Boxes page by page; labels, states, id, name and snapshots filter."""
        wanted = _labels(request.query("labels"))
        limit = whole(request.query("limit") or str(PAGE), "limit")
        boxes = [box for box in self._account.visible() if wanted.items() <= box.labels.items()]
        for name in ("id", "name"):
            if value := request.query(name):
                boxes = [box for box in boxes if str(getattr(box, name)).startswith(value)]
        if states := request.queries("states"):
            boxes = [box for box in boxes if box.state in states]
        if snapshots := request.queries("snapshots"):
            boxes = [box for box in boxes if box.image.name in snapshots]
        start = whole(request.query("cursor") or "0", "cursor")
        page = boxes[start : start + limit]
        following = str(start + limit) if start + limit < len(boxes) else None
        return Reply(body={"items": [box.item(self._toolbox) for box in page], "nextCursor": following})

    async def get(self, _: Request, box: str) -> Reply:
        """One box."""
        return self._reply(self._account.box(box))

    async def delete(self, _: Request, box: str) -> Reply:
        """Begins to end it; one that is still coming up is refused, as Daytona does."""
        found = self._account.box(box)
        if found.state in COMING_UP:
            raise Refusal(400, "Sandbox state change in progress")
        self._account.destroy(found)
        return self._reply(found)

    async def start(self, _: Request, box: str) -> Reply:
        """Starts a stopped box again."""
        found = self._account.box(box)
        if found.state != "stopped":
            raise Refusal(400, f"Sandbox is not stopped: {found.state}")
        self._account.check_quota(Image("", "", cpu=found.image.cpu, memory_gib=found.image.memory_gib, disk_gib=0))
        found.state, found.dead = "starting", False
        self._come_up(found)
        return self._reply(found)

    async def stop(self, _: Request, box: str) -> Reply:
        """Stops a running box."""
        found = self._account.box(box)
        if found.state != "started":
            raise Refusal(400, f"Sandbox is not started: {found.state}")
        self._account.stop(found)
        return self._reply(found)

    async def labels(self, request: Request, box: str) -> Reply:
        """Replaces its labels."""
        found = self._account.box(box)
        found.labels = texts(request.json(), "labels")
        return Reply(body={"labels": found.labels})

    async def auto_stop(self, _: Request, box: str, minutes: str) -> Reply:
        """Sets the minutes without activity after which it stops."""
        found = self._account.box(box)
        found.auto_stop = whole(minutes, "interval")
        return self._reply(found)

    async def auto_delete(self, _: Request, box: str, minutes: str) -> Reply:
        """Sets the minutes after its stop at which it is destroyed."""
        found = self._account.box(box)
        found.auto_delete = -1 if minutes.startswith("-") else whole(minutes, "interval")
        return self._reply(found)

    async def auto_archive(self, _: Request, box: str, minutes: str) -> Reply:
        """Kept and shown; nothing is ever archived."""
        found = self._account.box(box)
        found.auto_archive = whole(minutes, "interval")
        return self._reply(found)

    async def ttl(self, _: Request, box: str, minutes: str) -> Reply:
        """Sets the minutes, from now, after which it is destroyed; 0 means never."""
        found = self._account.box(box)
        found.due = self._due(whole(minutes, "ttlMinutes"))
        return self._reply(found)

    async def last_activity(self, _: Request, box: str) -> Reply:
        """Counts as activity."""
        self._account.box(box).touch()
        return Reply(201)

    async def toolbox_url(self, _: Request, box: str) -> Reply:
        """Where its toolbox is reached."""
        self._account.box(box)
        return Reply(body={"url": self._toolbox})

    async def preview_url(self, _: Request, box: str, port: str) -> Reply:
        """A URL that wants its token in the header X-Daytona-Preview-Token."""
        found = self._account.box(box)
        token = self._token(found, whole(port, "port"), self._account.config.url_ttl_cap_s)
        return Reply(body={"sandboxId": found.id, "url": f"{self._origin}/preview/{found.id}-{port}", "token": token})

    async def signed_url(self, request: Request, box: str, port: str) -> Reply:
        """A URL that holds its token."""
        found, inner = self._account.box(box), whole(port, "port")
        seconds = whole(request.query("expiresInSeconds") or str(DEFAULT_URL_TTL_S), "expiresInSeconds")
        cap = self._account.config.url_ttl_cap_s
        if not 1 <= seconds <= cap:
            raise Refusal(400, f"expiresInSeconds must be between 1 and {cap}")
        token = self._token(found, inner, seconds)
        url = f"{self._origin}/preview/{token}"
        return Reply(body={"sandboxId": found.id, "port": inner, "token": token, "url": url})

    async def expire_url(self, _: Request, box: str, port: str, token: str) -> Reply:
        """Ends a signed URL."""
        found = self._account.box(box)
        if self._account.tokens.get(token, ("", 0))[:2] == (found.id, whole(port, "port")):
            del self._account.tokens[token]
        return Reply()

    def _due(self, minutes: int) -> float:
        return time.time() + minutes * self._account.config.minute_s if minutes else 0.0

    def _token(self, box: Box, port: int, seconds: int) -> str:
        token = secrets.token_hex(TOKEN_BYTES)
        self._account.tokens[token] = (box.id, port, time.time() + seconds)
        return token

    def _reply(self, box: Box, headers: dict[str, str] | None = None) -> Reply:
        return Reply(body=box.dto(self._toolbox), headers=headers or {})


def _labels(text: str) -> dict[str, str]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        raise Refusal(400, "labels is no JSON") from None
    return texts({"labels": value}, "labels")
