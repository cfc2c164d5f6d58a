"""Sandboxes of the account and the images that they start from, with the objects that the API returns for them."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from finqa_testing.daytona.sandbox_commands import HOST_VARIABLES, Session, ShellCommand, host_environment

ORGANIZATION = "loopback-organization"
REGION = "loopback"
ENDED = ("destroyed", "destroying")
USES_CPU = ("creating", "starting", "started", "stopping", "restoring")


class Link(Protocol):
    """An open preview connection."""

    def freeze(self) -> None:
        """Stops all data; the connection stays open."""
        ...

    def thaw(self) -> None:
        """Forwards data again, including data that was held back."""
        ...

    def abort(self) -> None:
        """Resets the connection at both ends."""
        ...


@dataclass(slots=True, eq=False)
class LoopbackImage:
    """An image, which Daytona calls a snapshot.

    Attributes:
        state: `pending`, `building`, `active`, `inactive`, `build_failed` or `removing`.
        mounts: Absolute path inside the image -> file or folder on this machine.
        environment: Variables that the image sets; paths in their values are paths inside the image.
        packages: Folders on this machine that programs of the image import from.
        broken: Whether servers exit at their start.
        dockerfile: The Dockerfile that it was built from; empty for a folder of this machine.
        log: Lines of its build so far.
        changed: Set and replaced whenever the log or the state changes.
    """

    id: str
    name: str
    state: str = "active"
    cpu: int = 1
    memory_gib: int = 1
    disk_gib: int = 3
    mounts: dict[str, Path] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    packages: list[Path] = field(default_factory=list)
    broken: bool = False
    error: str = ""
    dockerfile: str = ""
    contexts: tuple[str, ...] = ()
    created: float = field(default_factory=time.time)
    log: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def host_path(self, path: str) -> str | None:
        """Returns the path on this machine for a path inside the image; None for a path that is not in the image."""
        return host_path(self.mounts, path)

    def program_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment variables of a program of the image, without keys and secrets of this process.

        Values that are paths inside the image are replaced by paths on this machine.
        """
        merged = {**self.environment, **variables}
        return host_environment(self.packages) | {
            name: (self.host_path(value) or value) if value.startswith("/") else value
            for name, value in merged.items()
            if name not in HOST_VARIABLES
        }

    def write_log(self, line: str) -> None:
        """Adds a line to the build's log."""
        self.log.append(line)
        self.notify()

    def notify(self) -> None:
        """Wakes the tasks that follow the log."""
        self.changed.set()
        self.changed = asyncio.Event()

    def dto(self) -> dict[str, object]:
        """Returns a SnapshotDto of the SDK 0.226.1."""
        created = iso(self.created)
        build = {
            "dockerfileContent": self.dockerfile,
            "contextHashes": list(self.contexts),
            "createdAt": created,
            "updatedAt": created,
            "snapshotRef": f"loopback/{self.id}",
        }
        return {
            "id": self.id,
            "organizationId": ORGANIZATION,
            "general": False,
            "name": self.name,
            "imageName": None,
            "state": self.state,
            "size": 0.1 if self.state == "active" else None,
            "entrypoint": None,
            "cpu": self.cpu,
            "gpu": 0,
            "mem": self.memory_gib,
            "disk": self.disk_gib,
            "errorReason": self.error or None,
            "createdAt": created,
            "updatedAt": created,
            "lastUsedAt": None,
            "sourceSandboxId": None,
            "regionIds": [REGION],
            **({"buildInfo": build} if self.dockerfile else {}),
        }


@dataclass(slots=True, eq=False)
class LoopbackSandbox:
    """A sandbox. Times are in Unix seconds, intervals in minutes of the sandbox's timers.

    Attributes:
        state: The state in Daytona's terms.
        auto_stop: Minutes without activity until it stops; 0 means never.
        auto_delete: Minutes after its stop until it is destroyed; 0 means at once, negative means never.
        due: Time at which it is destroyed in any state; 0 means never.
        listed: Time from which the list shows it.
        vanished: Time at which it was destroyed; the list may show it for a while longer.
        dead: Whether its processes have ended, so that the preview answers 502.
        frozen: Whether it answers no request.
        user: The user of its programs that the API reports.
        network_blocked: Whether it was created without a network; its commands can use this machine's nevertheless.
        sessions: Sessions of the toolbox by id.
        executed: Commands outside of sessions that run, or that left processes running.
        folder: Folder of its own files on this machine.
        files: Uploaded files: absolute path inside the sandbox -> path on this machine.
        ports: Port inside the sandbox -> port of the real server on this machine.
        links: Open preview connections.
    """

    id: str
    name: str
    image: LoopbackImage
    labels: dict[str, str]
    environment: Mapping[str, str]
    created: float
    folder: Path
    public: bool = False
    user: str = "daytona"
    network_blocked: bool = False
    state: str = "creating"
    error: str = ""
    auto_stop: int = 15
    auto_delete: int = -1
    auto_archive: int = 10_080
    due: float = 0.0
    active: float = 0.0
    stopped: float = 0.0
    listed: float = 0.0
    vanished: float = 0.0
    dead: bool = False
    frozen: bool = False
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: dict[str, Session] = field(default_factory=dict)
    executed: list[ShellCommand] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    links: set[Link] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Whether it is destroyed or being destroyed."""
        return self.state in ENDED

    def touch(self) -> None:
        """Records activity; preview traffic does not count as activity."""
        self.active = time.time()

    def freeze(self) -> None:
        """Stops all answers, also on open connections."""
        self.frozen = True
        self.thawed.clear()
        for link in list(self.links):
            link.freeze()

    def thaw(self) -> None:
        """Ends a freeze."""
        self.frozen = False
        self.thawed.set()
        for link in list(self.links):
            link.thaw()

    def die(self, state: str) -> None:
        """Ends its processes, resets its open connections and sets its state."""
        self.dead, self.frozen = True, False
        self.state = state
        self.ports.clear()
        for command in self.executed:
            command.end()
        for session in self.sessions.values():
            session.end()
        for link in list(self.links):
            link.abort()
        self.links.clear()
        self.thawed.set()

    def item(self, toolbox: str) -> dict[str, object]:
        """Returns a SandboxListItem of the SDK 0.226.1."""
        return {
            "id": self.id,
            "organizationId": ORGANIZATION,
            "name": self.name,
            "target": REGION,
            "snapshot": self.image.name,
            "user": self.user,
            "labels": self.labels,
            "public": self.public,
            "networkBlockAll": self.network_blocked,
            "cpu": self.image.cpu,
            "gpu": 0,
            "memory": self.image.memory_gib,
            "disk": self.image.disk_gib,
            "state": self.state,
            "desiredState": "destroyed" if self.ended else "started",
            "errorReason": self.error or None,
            "recoverable": False,
            "autoStopInterval": self.auto_stop,
            "autoArchiveInterval": self.auto_archive,
            "autoDeleteInterval": self.auto_delete,
            "createdAt": iso(self.created),
            "updatedAt": iso(max(self.created, self.active, self.stopped)),
            "lastActivityAt": iso(self.active),
            "toolboxProxyUrl": toolbox,
        }

    def dto(self, toolbox: str) -> dict[str, object]:
        """Returns a Sandbox of the SDK 0.226.1."""
        return {**self.item(toolbox), "env": dict(self.environment), "kvm": False, "volumes": []}


def host_path(mounts: Mapping[str, Path], path: str) -> str | None:
    """Returns the path on this machine for a path inside an image with these mounts; None if no mount contains it."""
    path = posixpath.normpath(path)
    for inside, outside in sorted(mounts.items(), key=lambda mount: -len(mount[0])):
        if path == inside:
            return str(outside)
        if path.startswith(inside.rstrip("/") + "/"):
            return str(outside / path[len(inside.rstrip("/")) + 1 :])
    return None


def iso(when: float) -> str:
    """Returns a time in Unix seconds in the format of the API."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
