"""Routes for the SDK 0.226.1 that create, show, change and end sandboxes, and show the key and its account."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from finqa_testing.daytona.account import DEFAULT_IMAGE, Account
from finqa_testing.daytona.dockerfile import BuildError, parse
from finqa_testing.daytona.http_service import (
    Endpoint,
    LostReply,
    Refusal,
    json_body,
    number,
    queries,
    text,
    texts,
    whole,
)
from finqa_testing.daytona.loopback_sandboxes import ORGANIZATION, REGION, LoopbackImage, LoopbackSandbox, iso

DEFAULT_URL_TTL_S = 60
PAGE = 100
STARTING = ("creating", "starting")
SNAPSHOT_QUOTA = 100
TOKEN_BYTES = 12


class SandboxApi:
    """The handlers of one account; URLs that they return begin with `origin`, such as `http://127.0.0.1:PORT`."""

    def __init__(self, account: Account, origin: str) -> None:
        self._account = account
        self._origin = origin
        self._toolbox = f"{origin}/toolbox"

    def endpoints(self) -> list[Endpoint]:
        """Returns the routes."""
        sandbox = "/api/sandbox/{sandbox}"
        port = f"{sandbox}/ports/{{port}}"
        return [
            ("POST", "/api/sandbox", self.create),
            ("GET", "/api/sandbox", self.list),
            ("GET", sandbox, self.get),
            ("DELETE", sandbox, self.delete),
            ("POST", f"{sandbox}/start", self.start),
            ("POST", f"{sandbox}/stop", self.stop),
            ("PUT", f"{sandbox}/labels", self.labels),
            ("POST", f"{sandbox}/autostop/{{minutes}}", self.auto_stop),
            ("POST", f"{sandbox}/autodelete/{{minutes}}", self.auto_delete),
            ("POST", f"{sandbox}/ttl/{{minutes}}", self.ttl),
            ("POST", f"{sandbox}/last-activity", self.last_activity),
            ("GET", f"{sandbox}/toolbox-proxy-url", self.toolbox_url),
            ("GET", f"{port}/preview-url", self.preview_url),
            ("GET", f"{port}/signed-preview-url", self.signed_url),
            ("POST", f"{port}/signed-preview-url/{{token}}/expire", self.expire_url),
            ("GET", "/api/api-keys/current", self.key),
            ("GET", "/api/organizations/{organization}/usage", self.usage),
        ]

    async def create(self, request: Request) -> Response:
        """Creates a sandbox; limit, quota and faults of create requests apply."""
        account, faults, random = self._account, self._account.config.faults, self._account.random
        self._admit()
        try:
            sandbox = self._make(await json_body(request))
        except Refusal:
            account.counters.creates["refused"] += 1
            raise
        account.counters.creates["accepted"] += 1
        headers = account.window.headers(time.monotonic())
        await asyncio.sleep(random.seconds("create", account.config.latency.create))
        self._finish_start(sandbox)
        if random.hit("lost_reply", faults.lost_reply):
            raise LostReply
        if random.hit("late_error", faults.late_error):
            raise Refusal(504, "The gateway timed out (injected fault)")
        return self._reply(sandbox, headers)

    def _admit(self) -> None:
        account, now = self._account, time.monotonic()
        if account.random.hit("rate_limited", account.config.faults.rate_limited):
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

    def _make(self, body: dict[str, object]) -> LoopbackSandbox:
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
        sandbox = account.add_sandbox(name, image, labels, environment)
        sandbox.auto_stop, sandbox.auto_delete, sandbox.due = auto_stop, auto_delete, self._due(ttl)
        sandbox.public, sandbox.network_blocked = body.get("public") is True, body.get("networkBlockAll") is True
        sandbox.user = text(body, "user") or sandbox.user
        return sandbox

    def _stock_image(self, body: dict[str, object], recipe: object) -> LoopbackImage:
        """Returns an image for one sandbox from a Dockerfile without a build context; nothing is pulled or built."""
        if not isinstance(recipe, dict) or recipe.get("contextHashes"):
            raise Refusal(400, "The loopback builds files into snapshots only; build the image as a snapshot first")
        dockerfile = text(recipe, "dockerfileContent")
        try:
            environment = parse(dockerfile).environment
        except BuildError as error:
            raise Refusal(400, str(error)) from None
        return LoopbackImage(
            self._account.random.identifier(),
            f"daytona-{hashlib.sha256(dockerfile.encode()).hexdigest()}",
            cpu=number(body, "cpu", 1),
            memory_gib=number(body, "memory", 1),
            disk_gib=number(body, "disk", 3),
            environment=environment,
            error=self._account.config.build_fails,
        )

    def _finish_start(self, sandbox: LoopbackSandbox) -> None:
        """Changes the state of a sandbox to `started`, or to one of failure, after the start time."""
        account = self._account
        failed = account.random.hit("start_failed", account.config.faults.start_failed)

        def arrive() -> None:
            if sandbox.state not in STARTING:
                return
            sandbox.touch()
            if sandbox.image.error:
                sandbox.error = sandbox.image.error
                sandbox.die("build_failed")
            elif failed:
                sandbox.error = "Failed to start the sandbox (injected fault)"
                sandbox.die("error")
            else:
                sandbox.state = "started"
                self._schedule_fault(sandbox)

        account.later(account.random.seconds("start", account.config.latency.start), arrive)

    def _schedule_fault(self, sandbox: LoopbackSandbox) -> None:
        """Decides at random whether the sandbox fails or freezes by itself later."""
        account, faults = self._account, self._account.config.faults
        if account.random.hit("dies", faults.dies):
            account.later(account.random.seconds("fault", faults.fault_after), lambda: account.kill(sandbox))
        elif account.random.hit("freezes", faults.freezes):
            account.later(account.random.seconds("fault", faults.fault_after), sandbox.freeze)

    async def list(self, request: Request) -> Response:
        """Lists sandboxes by pages; labels, states, snapshots and beginnings of id and name are filters."""
        wanted = _labels(request.query_params.get("labels", ""))
        limit = whole(request.query_params.get("limit") or str(PAGE), "limit")
        found = [sandbox for sandbox in self._account.visible() if wanted.items() <= sandbox.labels.items()]
        for name in ("id", "name"):
            if value := request.query_params.get(name):
                found = [sandbox for sandbox in found if str(getattr(sandbox, name)).startswith(value)]
        if states := queries(request, "states"):
            found = [sandbox for sandbox in found if sandbox.state in states]
        if snapshots := queries(request, "snapshots"):
            found = [sandbox for sandbox in found if sandbox.image.name in snapshots]
        start = whole(request.query_params.get("cursor") or "0", "cursor")
        page = [sandbox.item(self._toolbox) for sandbox in found[start : start + limit]]
        following = str(start + limit) if start + limit < len(found) else None
        return JSONResponse({"items": page, "nextCursor": following})

    async def get(self, _: Request, sandbox: str) -> Response:
        """Returns one sandbox."""
        return self._reply(self._account.sandbox(sandbox))

    async def delete(self, _: Request, sandbox: str) -> Response:
        """Begins to end a sandbox; while it is starting this is refused, as by Daytona."""
        found = self._account.sandbox(sandbox)
        if found.state in STARTING:
            raise Refusal(400, "Sandbox state change in progress")
        self._account.destroy(found)
        return self._reply(found)

    async def start(self, _: Request, sandbox: str) -> Response:
        """Starts a stopped sandbox again."""
        found = self._account.sandbox(sandbox)
        if found.state != "stopped":
            raise Refusal(400, f"Sandbox is not stopped: {found.state}")
        self._account.check_quota(
            LoopbackImage("", "", cpu=found.image.cpu, memory_gib=found.image.memory_gib, disk_gib=0)
        )
        found.state, found.dead = "starting", False
        self._finish_start(found)
        return self._reply(found)

    async def stop(self, _: Request, sandbox: str) -> Response:
        """Stops a running sandbox."""
        found = self._account.sandbox(sandbox)
        if found.state != "started":
            raise Refusal(400, f"Sandbox is not started: {found.state}")
        self._account.stop(found)
        return self._reply(found)

    async def labels(self, request: Request, sandbox: str) -> Response:
        """Replaces the labels of a sandbox."""
        found = self._account.sandbox(sandbox)
        found.labels = texts(await json_body(request), "labels")
        return JSONResponse({"labels": found.labels})

    async def auto_stop(self, _: Request, sandbox: str, minutes: str) -> Response:
        """Sets the minutes without activity after which a sandbox stops."""
        found = self._account.sandbox(sandbox)
        found.auto_stop = whole(minutes, "interval")
        return self._reply(found)

    async def auto_delete(self, _: Request, sandbox: str, minutes: str) -> Response:
        """Sets the minutes after its stop at which a sandbox is destroyed."""
        found = self._account.sandbox(sandbox)
        found.auto_delete = -1 if minutes.startswith("-") else whole(minutes, "interval")
        return self._reply(found)

    async def ttl(self, _: Request, sandbox: str, minutes: str) -> Response:
        """Sets the minutes from now after which a sandbox is destroyed; 0 means never."""
        found = self._account.sandbox(sandbox)
        found.due = self._due(whole(minutes, "ttlMinutes"))
        return self._reply(found)

    async def last_activity(self, _: Request, sandbox: str) -> Response:
        """Records activity."""
        self._account.sandbox(sandbox).touch()
        return Response(status_code=201)

    async def toolbox_url(self, _: Request, sandbox: str) -> Response:
        """Returns the URL of the toolbox of a sandbox."""
        self._account.sandbox(sandbox)
        return JSONResponse({"url": self._toolbox})

    async def preview_url(self, _: Request, sandbox: str, port: str) -> Response:
        """Returns a preview URL, and a token for the header X-Daytona-Preview-Token."""
        found = self._account.sandbox(sandbox)
        token = self._token(found, whole(port, "port"), self._account.config.url_ttl_cap_s)
        return JSONResponse({"sandboxId": found.id, "url": f"{self._origin}/preview/{found.id}-{port}", "token": token})

    async def signed_url(self, request: Request, sandbox: str, port: str) -> Response:
        """Returns a preview URL that contains its token."""
        found, inner = self._account.sandbox(sandbox), whole(port, "port")
        seconds = whole(request.query_params.get("expiresInSeconds") or str(DEFAULT_URL_TTL_S), "expiresInSeconds")
        cap = self._account.config.url_ttl_cap_s
        if not 1 <= seconds <= cap:
            raise Refusal(400, f"expiresInSeconds must be between 1 and {cap}")
        token = self._token(found, inner, seconds)
        url = f"{self._origin}/preview/{token}"
        return JSONResponse({"sandboxId": found.id, "port": inner, "token": token, "url": url})

    async def expire_url(self, _: Request, sandbox: str, port: str, token: str) -> Response:
        """Makes a signed URL invalid."""
        found = self._account.sandbox(sandbox)
        if self._account.tokens.get(token, ("", 0))[:2] == (found.id, whole(port, "port")):
            del self._account.tokens[token]
        return Response()

    async def key(self, _: Request) -> Response:
        """Returns the facts of the key (ApiKeyList of the SDK 0.226.1)."""
        body = {
            "name": "loopback",
            "value": "loopback-****",
            "createdAt": iso(self._account.counters.started),
            "permissions": ["write:sandboxes", "delete:sandboxes", "write:snapshots", "delete:snapshots"],
            "lastUsedAt": None,
            "expiresAt": None,
            "userId": "loopback-user",
            "organizationId": ORGANIZATION,
        }
        return JSONResponse(body)

    async def usage(self, _: Request, organization: str) -> Response:
        """Returns used resources and quotas (OrganizationUsageOverview of the SDK 0.226.1)."""
        if organization != ORGANIZATION:
            raise Refusal(404, f"Organization {organization} not found")
        used, quota = self._account.used(), self._account.config.quota
        region = {
            "regionId": REGION,
            "sandboxClass": "container",
            "totalCpuQuota": quota.cpu,
            "currentCpuUsage": used["CPU"],
            "totalMemoryQuota": quota.memory_gib,
            "currentMemoryUsage": used["memory"],
            "totalDiskQuota": quota.disk_gib,
            "currentDiskUsage": used["disk"],
            "totalGpuQuota": 0,
            "currentGpuUsage": 0,
            "maxCpuPerSandbox": 4,
            "maxMemoryPerSandbox": 8,
            "maxDiskPerSandbox": 10,
            "maxDiskPerNonEphemeralSandbox": None,
            "maxCpuPerGpu": None,
            "maxMemoryPerGpu": None,
            "maxDiskPerGpu": None,
        }
        body = {
            "regionUsage": [region],
            "totalSnapshotQuota": SNAPSHOT_QUOTA,
            "currentSnapshotUsage": len(self._account.images),
            "totalVolumeQuota": 0,
            "currentVolumeUsage": 0,
        }
        return JSONResponse(body)

    def _due(self, minutes: int) -> float:
        return time.time() + minutes * self._account.config.minute_s if minutes else 0.0

    def _token(self, sandbox: LoopbackSandbox, port: int, seconds: int) -> str:
        token = secrets.token_hex(TOKEN_BYTES)
        self._account.tokens[token] = (sandbox.id, port, time.time() + seconds)
        return token

    def _reply(self, sandbox: LoopbackSandbox, headers: dict[str, str] | None = None) -> Response:
        return JSONResponse(sandbox.dto(self._toolbox), headers=headers)


def _labels(text: str) -> dict[str, str]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        raise Refusal(400, "labels is no JSON") from None
    return texts({"labels": value}, "labels")
