"""Sandboxes, and the images that they start from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A named, immutable data set compiled for an environment server.

    Attributes:
        name: Name for `--snapshot`.
        digest: `sha256:<hex>` of the compiled files.
        path: Folder of the compiled files on this machine.
        metadata: The manifest: counts, splits, source.
    """

    name: str
    digest: str
    path: Path
    metadata: Mapping[str, object] = field(default_factory=dict)


EMBEDDED_SNAPSHOT = "openenv-finqa"
"""Name of the snapshot of the data set that ships with the package."""


def rebuild_command(name: str) -> str:
    """Return the command that builds a snapshot again; `DIR` is the folder with its data.

    The embedded data set is never built under another name, where it could be mistaken for the data of that name.
    """
    if name == EMBEDDED_SNAPSHOT:
        return "finqa snapshot build"
    return f"finqa snapshot build --snapshot-name {name} --data DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSource:
    """A server as a folder of Python files, for providers whose sandboxes cannot read the files of this machine.

    Attributes:
        folder: The package.
        app: Its ASGI app as `package.module:name`; images contain the folder under the name of the package.
        requirements: Requirements that pip installs for it.
        project: Whether the folder is a project that pip builds and installs as a wheel.
        dockerfile: The Dockerfile that images are built from, with the folder as its context; None: an image contains
            the installed requirements, the folder, and the installed project.
    """

    folder: Path
    app: str
    requirements: tuple[str, ...] = ()
    project: bool = False
    dockerfile: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A sandbox in which a server of the environment runs: a module of finqa, a command, or a ready image.

    Providers raise a ConfigError for a spec that they cannot start.

    Attributes:
        module: Python module that serves the environment; it reads HOST, PORT and FINQA_* variables.
        command: Program and arguments of a server that binds HOST and PORT itself; `{host}` and `{port}` in an
            argument are replaced by their values.
        image: Container image whose own entry point serves on `port`.
        source: Source of the server of `command`, for providers that build images; None if it is not known.
        snapshot: The data that the sandbox must contain, or None for a server that brings its own; its folder inside
            the sandbox is passed to the server as FINQA_SNAPSHOT.
        port: Port that the server listens on inside a remote sandbox; a local sandbox picks a free one.
        environment: Further environment variables of the server, never with secrets.
        health_path: Path where GET returns 200 when the server is ready.
        requires: Import names that the server needs beside finqa itself.
        extra: The extra of finqa that installs them.
        remedy: What fixes a server that cannot start at all, which exits with status 78 (EX_CONFIG).
    """

    module: str = ""
    command: tuple[str, ...] = ()
    image: str = ""
    source: ServerSource | None = None
    snapshot: Snapshot | None = None
    port: int = 8000
    environment: Mapping[str, str] = field(default_factory=dict)
    health_path: str = "/health"
    requires: tuple[str, ...] = ()
    extra: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.module, self.command, self.image))) != 1:
            raise ValueError("a ServerSpec names exactly one of module, command and image")
        if self.source and not self.command:
            raise ValueError("the source of a ServerSpec is that of its command")

    @property
    def server(self) -> str:
        """Name of the server in messages."""
        return self.module or " ".join(self.command) or self.image

    def process(self, host: str, port: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return how a host with this Python and these files runs the server: its command and its variables.

        Raises:
            ValueError: The server is an image.
        """
        if self.image:
            raise ValueError("an image has no command")
        command = tuple(part.replace("{host}", host).replace("{port}", str(port)) for part in self.command)
        data = {"FINQA_SNAPSHOT": str(self.snapshot.path.absolute())} if self.snapshot else {}
        variables = {**self.environment, "HOST": host, "PORT": str(port), **data}
        return command or (sys.executable, "-m", self.module), variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSpec:
    """A sandbox in which code that the policy wrote is executed; it contains no data and serves nothing.

    Attributes:
        fresh: Each session gets a sandbox that no other session has used. If False, sandboxes are reused; every
            execution still has its own process and folder.
    """

    fresh: bool = False


SandboxSpec = ServerSpec | ExecutionSpec
"""The sandbox that an environment needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox in its provider's list.

    Attributes:
        id: Provider's id.
        state: `started`, `starting`, `stopped`, `error`, or `stuck`: the provider accepted its deletion, and has not
            carried it out in the time that deletions take.
        labels: The labels it was started with; `finqa.run` is always among them.
        created: Unix time in seconds.
    """

    id: str
    state: str
    labels: Mapping[str, str]
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """A provider's own copy of environment code and a snapshot, from which it starts sandboxes.

    Attributes:
        name: The provider's name of the image. It contains the snapshot's name and a digest, so the content of a name
            never changes.
        snapshot: Name of the snapshot inside.
        digest: `sha256:<hex>` over the snapshot, the code and the resources of its sandboxes.
        state: `active`, `building`, or the failure.
        created: Unix time in seconds; 0.0 if the provider does not report it.
    """

    name: str
    snapshot: str
    digest: str
    state: str
    created: float = 0.0
