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
        max_concurrent_create: How many sandboxes may be starting at once.
        cluster: Ray cluster over which creates of an account are counted; empty: over this machine.
    """

    home: Path
    max_concurrent_create: int = 100
    cluster: str = ""


class Sandbox(ABC):
    """A running sandbox. The caller that started it stops it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The provider's id."""

    @property
    def server_id(self) -> str:
        """Return the id of the server process or machine of the sandbox: sandboxes with the same id end together.

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
        """Execute an untrusted command; no process or file of it remains afterwards. Several may run at once.

        Raises:
            SandboxError: The sandbox failed, so the outcome of the code is unknown. Never because of what the code did.
        """


class SandboxProvider(ABC):
    """Base class of all sandbox providers, constructed as `Provider(config, context)`.

    `start`, `list`, `reap` and `close` are required. A provider whose sandboxes cannot see this machine's files builds
    images of code and data: it sets `builds_images` and implements the methods for images, which have defaults.
    """

    builds_images: ClassVar[bool] = False
    """Whether sandboxes start from images that `build_image` makes."""

    @abstractmethod
    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Sandbox:
        """Start a sandbox and wait until it, or its server, is healthy. Wait for a turn where starts are limited.

        Raises:
            SandboxError: It did not become ready; nothing of it is left behind. Another try may succeed.
            FinqaError: No try can succeed before the remedy is carried out: a key is refused, a quota is used up, the
                image does not exist, the provider has no sandboxes of this kind, code cannot be isolated here.
        """

    def check_key(self) -> None:  # noqa: B027 - optional: most providers need none
        """Raise an error at once if every start would fail because the key is missing; sends no request.

        Default: no check.

        Raises:
            AuthenticationError: The key is missing.
        """

    def most_sandboxes(self, spec: SandboxSpec) -> int | None:
        """Return how many sandboxes of this kind may run at once; None, the default, where nothing limits them."""
        return None

    @abstractmethod
    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """List the sandboxes that carry all these labels, from any process of this user."""

    @abstractmethod
    async def reap(self, sandbox_id: str) -> None:
        """End a sandbox by id, also one that another process started, and return when it has ended. Idempotent.

        Raises:
            SandboxError: It still exists after some time.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every sandbox that this object started and free its resources. Idempotent."""

    def leftovers(self) -> Sequence[Path]:
        """Return files of this provider on this machine that ended processes left and that are no longer needed.

        Default: none.
        """
        return ()

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """Build the image that `start(spec)` will look for; `on_log` receives the log a line at a time.

        Returns:
            The image, and whether it is new: when one of this content is active already nothing is done.

        Raises:
            FinqaError: The build failed; the end of its log is in the message.
            NotImplementedError: `builds_images` is False. This is the default.
        """
        raise NotImplementedError(f"{type(self).__name__} builds no images.")

    async def images(self) -> Sequence[ImageInfo]:
        """List the images that this product built, sorted by name and age. Default: none."""
        return ()

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """Delete every image of a snapshot and return their names, an empty list when there is none.

        Raises:
            NotImplementedError: `builds_images` is False. This is the default.
        """
        raise NotImplementedError(f"{type(self).__name__} builds no images.")
