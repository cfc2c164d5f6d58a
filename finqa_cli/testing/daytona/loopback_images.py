"""What boxes start from: an image's files on this machine, its variables and its resources."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from finqa_cli.testing.daytona.loopback_sandboxes import ORGANIZATION, REGION, iso


@dataclass(slots=True, eq=False)
class Image:
    """A snapshot of the account, in Daytona's word.

    Attributes:
        state: pending, building, active, inactive, build_failed or removing.
        mounts: Absolute path inside the image -> file or folder on this machine.
        environment: Variables that the image sets; values are paths inside the image.
        packages: Folders on this machine that programs of the image import from.
        broken: Servers exit at start.
        dockerfile: What it was built from, empty for a folder of this machine.
        log: Lines of its build so far.
        grown: Set and replaced whenever the log or the state changes.
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
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def host_path(self, path: str) -> str | None:
        """Where a path inside the image lies on this machine; None for files that the image did not bring."""
        path = posixpath.normpath(path)
        for inside, outside in sorted(self.mounts.items(), key=lambda mount: -len(mount[0])):
            if path == inside:
                return str(outside)
            if path.startswith(inside.rstrip("/") + "/"):
                return str(outside / path[len(inside.rstrip("/")) + 1 :])
        return None

    def translated(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Variables whose values that are paths inside the image are replaced by paths on this machine."""
        return {
            name: (self.host_path(value) or value) if value.startswith("/") else value
            for name, value in variables.items()
        }

    def say(self, line: str) -> None:
        """Adds a line to the build's log."""
        self.log.append(line)
        self.notify()

    def notify(self) -> None:
        """Wakes those who follow the log."""
        self.grown.set()
        self.grown = asyncio.Event()

    def dto(self) -> dict[str, object]:
        """SnapshotDto of the SDK 0.226.1."""
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
            "createdAt": iso(self.created),
            "updatedAt": iso(self.created),
            "lastUsedAt": None,
            "sourceSandboxId": None,
            "regionIds": [REGION],
            **({"buildInfo": self._build_info()} if self.dockerfile else {}),
        }

    def _build_info(self) -> dict[str, object]:
        return {
            "dockerfileContent": self.dockerfile,
            "contextHashes": list(self.contexts),
            "createdAt": iso(self.created),
            "updatedAt": iso(self.created),
            "snapshotRef": f"loopback/{self.id}",
        }
