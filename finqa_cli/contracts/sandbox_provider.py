"""Contract of the sandbox providers, which start, list and end sandboxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from finqa_cli.types import ExecutionRequest, ExecutionResult, ImageInfo, SandboxInfo, SandboxSpec, ServerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxContext:
    """Settings that the wiring passes to a provider.

    Attributes:
        home: Folder for the provider's own state (ledger, logs).
        max_concurrent_create: Most sandboxes that may be starting at once.
        cluster: Address of the Ray cluster whose processes share one count of an account's creates; empty: the
            processes of this machine share it.
    """

    home: Path
    max_concurrent_create: int = 100
    cluster: str = ""


class Sandbox(ABC):
    """A running sandbox. The caller that started it must stop it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The provider's id."""

    @property
    def server_id(self) -> str:
        """Return the id of the server process or machine of the sandbox. Sandboxes with the same id end together.

        Default: the sandbox's own id.
        """
        return self.id

    @abstractmethod
    async def healthy(self) -> bool:
        """Return whether the sandbox, and the server that it runs, answers within a few seconds. Never raises."""

    @abstractmethod
    async def stop(self) -> None:
        """End the sandbox. Idempotent, never raises for a sandbox that has already ended."""


class ServingSandbox(Sandbox):
    """A sandbox started from a `ServerSpec`."""

    @abstractmethod
    def url(self) -> str:
        """Return the base `http://` or `https://` address of the server inside, reachable from here."""


class ExecutingSandbox(Sandbox):
    """A sandbox started from an `ExecutionSpec`."""

    @abstractmethod
    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Execute an untrusted command. No process or file of it remains afterwards. Several commands may run at once.

        Raises:
            SandboxError: The sandbox failed, so the outcome of the code is unknown. The code itself never causes this
                error.
        """


class SandboxProvider(ABC):
    """Base class of all sandbox providers, constructed as `Provider(config, context)`.

    `start`, `list`, `reap` and `close` are required. A provider whose sandboxes cannot read the files of this machine
    builds images of code and data: it sets `builds_images` and overrides the methods for images.
    """

    builds_images: ClassVar[bool] = False
    """Whether sandboxes start from images that `build_image` makes."""

    @abstractmethod
    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Sandbox:
        """Start a sandbox and wait until it, or its server, is healthy. If starts are limited, wait for a turn first.

        Raises:
            SandboxError: The sandbox did not become ready, and nothing of it is left. Another try may succeed.
            FinqaError: No try can succeed before the remedy is carried out. Examples: a key is refused, a quota is used
                up, the image does not exist, the provider has no sandboxes of this kind, code cannot be isolated here.
        """

    def check_key(self) -> None:  # noqa: B027 - optional: most providers need none
        """Raise an error at once if every start would fail because the key is missing; sends no request.

        Default: no check.

        Raises:
            AuthenticationError: The key is missing.
        """

    def most_sandboxes(self, spec: SandboxSpec) -> int | None:
        """Return how many sandboxes of this kind may run at once. Default: None, no limit."""
        return None

    @abstractmethod
    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """List the sandboxes that carry all these labels, also those that other processes of this user started."""

    @abstractmethod
    async def reap(self, sandbox_id: str) -> None:
        """End a sandbox by id, also if another process started it, and return when it has ended. Idempotent.

        Raises:
            SandboxError: The sandbox still exists after some time.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every sandbox that this object started and free its resources. Idempotent."""

    def leftovers(self) -> Sequence[Path]:
        """Return files of this provider on this machine that ended processes left behind and that are not needed.

        Default: none.
        """
        return ()

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """Build the image that `start(spec)` will look for; `on_log` receives the log line by line.

        Returns:
            The image, and whether it is new. If an image with this content is already active, nothing is built.

        Raises:
            FinqaError: The build failed; the message contains the end of its log.
            NotImplementedError: `builds_images` is False. This is the default.
        """
        raise NotImplementedError(f"{type(self).__name__} builds no images.")

    async def images(self) -> Sequence[ImageInfo]:
        """List the images that finqa built, sorted by name and age. Default: none."""
        return ()

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """Delete every image of a snapshot and return their names, an empty list when there is none.

        Raises:
            NotImplementedError: `builds_images` is False. This is the default.
        """
        raise NotImplementedError(f"{type(self).__name__} builds no images.")
