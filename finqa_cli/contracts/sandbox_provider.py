"""Sandbox providers: who makes the boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from finqa_cli.types import ExecutionRequest, ExecutionResult, ImageInfo, SandboxInfo, SandboxSpec, ServerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxContext:
    """What wiring tells a provider.

    Attributes:
        home: Folder for the provider's own state (ledger, logs).
        max_concurrent_create: How many boxes may be starting at once.
    """

    home: Path
    max_concurrent_create: int = 100


@runtime_checkable
class Sandbox(Protocol):
    """A running box. Whoever started it stops it."""

    @property
    def id(self) -> str:
        """The provider's id."""
        ...

    async def healthy(self) -> bool:
        """True when the box, and the server that it runs, answers within a few seconds. Never raises."""
        ...

    async def stop(self) -> None:
        """Ends the box. Idempotent, never raises for a box that is already gone."""
        ...


@runtime_checkable
class ServingSandbox(Sandbox, Protocol):
    """What a `ServerSpec` gives."""

    def url(self) -> str:
        """Base `http://` or `https://` address of the server inside, reachable from here."""
        ...


@runtime_checkable
class ExecutingSandbox(Sandbox, Protocol):
    """What an `ExecutionSpec` gives."""

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Executes a command that nobody trusts; nothing of it is left when this returns. Several may run at once.

        Raises:
            SandboxError: The box failed, so what the code would have done is not known. Never because of what it did.
        """
        ...


@runtime_checkable
class SandboxProvider(Protocol):
    """Starts, lists and ends boxes. Constructed as `Provider(config, context)`."""

    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Sandbox:
        """Starts a box and waits until it, or its server, is healthy. Waits its turn where the provider limits starts.

        Raises:
            SandboxError: It did not become ready; nothing of it is left behind. Another try may succeed.
            FinqaError: No try can succeed before the remedy is carried out: a key is refused, a quota is used up, the
                image does not exist, the provider has no boxes of this kind, code cannot be isolated here.
        """
        ...

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """Boxes that carry all these labels, from any process of this user."""
        ...

    async def reap(self, sandbox_id: str) -> None:
        """Ends a box by id, also one that another process started, and returns when it is gone. Idempotent.

        Raises:
            SandboxError: It is still there after a while.
        """
        ...

    async def close(self) -> None:
        """Ends every box that this object started and frees its resources. Idempotent."""
        ...


@runtime_checkable
class ImageBuilder(Protocol):
    """What a provider offers besides whose boxes cannot see this machine's files: images with code and data inside."""

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """Makes the image that `start(spec)` will look for; `on_log` hears the build a line at a time.

        Returns:
            The image, and whether it is new: when one of this content is active already nothing is done.

        Raises:
            FinqaError: The build failed; the end of its log is in the message.
        """
        ...

    async def images(self) -> Sequence[ImageInfo]:
        """Images that this product made, by name and age."""
        ...

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """Deletes every image of a snapshot and returns their names, none when there is none."""
        ...
