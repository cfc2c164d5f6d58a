"""One sandbox of the account, and what the API says about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from finqa_cli.testing.daytona.loopback_images import Image
    from finqa_cli.testing.daytona.toolbox_sessions import Command, Session

ORGANIZATION = "loopback-organization"
REGION = "loopback"
ENDED = ("destroyed", "destroying")
HOLDS_CPU = ("creating", "starting", "started", "stopping", "restoring")


class Link(Protocol):
    """An open preview connection."""

    def freeze(self) -> None:
        """No byte passes any more; the connection stays open."""
        ...

    def thaw(self) -> None:
        """Bytes pass again, those that waited included."""
        ...

    def abort(self) -> None:
        """Resets both ends."""
        ...


@dataclass(slots=True, eq=False)
class Box:
    """A sandbox. Times are Unix seconds; intervals are the box's minutes.

    Attributes:
        state: Daytona's word for it.
        auto_stop: Minutes without activity until it stops; 0 means never.
        auto_delete: Minutes after its stop until it is destroyed; 0 means at once, negative means never.
        due: When it is destroyed, whatever its state; 0 means never.
        listed: When the list shows it first.
        vanished: When it was destroyed; the list may show it for a while longer.
        dead: Its processes are gone; the preview answers 502.
        frozen: It answers nothing.
        user: Who its programs run as, as far as the API says.
        network_blocked: Whether it was asked for without a network; its commands have this machine's all the same.
        executed: Commands outside of sessions that run, or that left something running.
        folder: Its own files on this machine.
        files: Those that were uploaded: absolute path inside -> where it lies on this machine.
        ports: Port inside -> port of the real server on this machine.
        links: Open preview connections.
    """

    id: str
    name: str
    image: Image
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
    executed: list[Command] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    links: set[Link] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Destroyed or on the way there."""
        return self.state in ENDED

    def touch(self) -> None:
        """Something happened that counts as activity; preview traffic does not."""
        self.active = time.time()

    def freeze(self) -> None:
        """Answers nothing from here on, on open connections too."""
        self.frozen = True
        self.thawed.clear()
        for link in list(self.links):
            link.freeze()

    def thaw(self) -> None:
        """Answers again."""
        self.frozen = False
        self.thawed.set()
        for link in list(self.links):
            link.thaw()

    def die(self, state: str) -> None:
        """Its processes end and every open connection is reset."""
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
        """As the list shows it (SandboxListItem of the SDK 0.226.1)."""
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
        """As a single read shows it (Sandbox of the SDK 0.226.1)."""
        return {**self.item(toolbox), "env": dict(self.environment), "kvm": False, "volumes": []}


def iso(when: float) -> str:
    """Unix seconds as the API writes times."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
