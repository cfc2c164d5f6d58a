"""Images on Daytona, which calls them snapshots: each content is built once. Also looked up by name, and deleted."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from daytona import CreateSnapshotParams, DaytonaError, DaytonaNotFoundError, DaytonaTimeoutError, Image, Resources

from finqa_cli.errors import FinqaError, SandboxError, ServiceUnavailableError
from finqa_cli.types import ImageInfo, ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import Recipe, parse_name, write_context
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud
from finqa_plugins.sandboxes.daytona.daytona_errors import LIMITS_PAGE, QUOTA_REMEDY, is_passing
from finqa_plugins.sandboxes.daytona.daytona_recipe import make_recipe

if TYPE_CHECKING:
    from daytona.common.snapshot import Snapshot

Result = TypeVar("Result")

ACTIVE, INACTIVE, REMOVING = "active", "inactive", "removing"
FAILED = frozenset({"error", "build_failed"})
_AT_REST = FAILED | {ACTIVE, INACTIVE, REMOVING}
_POLL_S = 1.0
_CREATE_TRIES = 4
_PAGE = 100
_LAST_LINES = 20
_FOLLOWER = "start_log_streaming"
_NOISE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]|SnapshotState\.")


class Images:
    """The methods of `finqa_cli.contracts.SandboxProvider` for images."""

    def __init__(self, cloud: Cloud, config: DaytonaSandboxConfig) -> None:
        self._cloud = cloud
        self._config = config

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """Builds the image of a spec unless it is active already.

        Waits for a build in progress, which another user or an interrupted command may have started. Deletes an image
        whose build failed, and builds it again. Activates an image that Daytona has deactivated.

        Raises:
            FinqaError: The build failed; the end of its log is in the message.
            ServiceUnavailableError: The build took too long, or Daytona cannot be reached.
        """
        recipe = await asyncio.to_thread(make_recipe, spec, self._config)
        log = _BuildLog(on_log)
        limit = self._config.build_timeout_s
        try:
            async with asyncio.timeout(limit) as deadline:
                return await self._made(recipe, log)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ServiceUnavailableError(
                f"Image {recipe.name} was not ready after {limit:g} s; the build itself continues.{log.ending()}",
                remedy=f"{_again(recipe)} waits for it; --set sandbox.options.build_timeout_s=N waits longer",
            ) from error

    async def images(self) -> Sequence[ImageInfo]:
        """Images that finqa built for anyone in the organisation, sorted by snapshot, then age."""
        found = [_described(image) async for image in self._all()]
        return sorted(found, key=lambda image: (image.snapshot, image.created, image.name))

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """Deletes all images of a snapshot and returns their names once they are gone.

        Raises:
            ServiceUnavailableError: An image still exists after a while.
        """
        chosen = [image async for image in self._all() if (parse_name(image.name) or ("",))[0] == snapshot]
        for image in chosen:
            await self._delete(image)
        return sorted(image.name for image in chosen)

    async def _made(self, recipe: Recipe, log: _BuildLog) -> tuple[ImageInfo, bool]:
        image, waited = await self._find(recipe.name), False
        if image is not None and _state(image) not in _AT_REST:
            log.hear(f"Image {recipe.name} is already being built; waiting for it.")
            image, waited = await self._at_rest(recipe.name), True
        if image is not None and _state(image) == INACTIVE:
            log.hear(f"Activating image {recipe.name}.")
            await self._activate(image)
            image = await self._at_rest(recipe.name, but=INACTIVE)
        if image is not None and _state(image) == ACTIVE:
            return _described(image), waited
        if image is not None:
            log.hear(f"Removing the remains of image {recipe.name}: {_reason(image)}")
            await self._delete(image)
        if self._config.base_image and "@sha256:" not in self._config.base_image:
            log.hear(
                f"Base image {self._config.base_image} names no digest: the same build may have a "
                "different result later."
            )
        with tempfile.TemporaryDirectory(prefix="finqa-image-") as folder:
            dockerfile = await asyncio.to_thread(write_context, recipe, Path(folder))
            _under_way.add(log)
            try:
                return _described(await self._built(recipe, dockerfile, log)), True
            finally:
                _under_way.discard(log)
                if not _under_way:
                    await _end_followers()

    async def _built(self, recipe: Recipe, dockerfile: Path, log: _BuildLog) -> Snapshot:
        """Sends the build and waits for it.

        The SDK gives up at the first lost reply and raises its transport's errors, while the build may continue. So the
        state of the image afterwards decides. If there is no image, nothing was done and the build is sent again.
        """
        for number in range(1, _CREATE_TRIES + 1):
            try:
                return await self._create(recipe, dockerfile, log)
            except Exception as error:
                image = await self._at_rest(recipe.name)
                if image is not None and _state(image) == ACTIVE:
                    return image
                if image is not None:
                    raise FinqaError(
                        f"Building image {recipe.name} failed: {_reason(image)}{log.ending()}", remedy=_again(recipe)
                    ) from error
                if not isinstance(error, DaytonaError):
                    raise SandboxError(f"Sending image {recipe.name} failed: {error}", remedy=_again(recipe)) from error
                if number == _CREATE_TRIES or not is_passing(error):
                    raise self._refused(error, recipe) from error
                pause = self._cloud.pause_s(number, error)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _create(self, recipe: Recipe, dockerfile: Path, log: _BuildLog) -> Snapshot:
        config = self._config
        params = CreateSnapshotParams(
            name=recipe.name,
            image=Image.from_dockerfile(dockerfile, strict_context=True),
            resources=Resources(cpu=config.cpu, memory=config.memory_gib, disk=config.disk_gib),
        )
        return await self._cloud.client().snapshot.create(params, on_logs=log.hear, timeout=0)

    def _refused(self, error: DaytonaError, recipe: Recipe) -> FinqaError:
        told = self._cloud.explain(error, f"building image {recipe.name}")
        if told.remedy == QUOTA_REMEDY:  # of images here, not of sandboxes
            told.remedy = f"finqa snapshot list --sandbox daytona, and delete an old one; or raise it at {LIMITS_PAGE}"
        return told

    async def _activate(self, image: Snapshot) -> None:
        service = self._cloud.client().snapshot
        await self._ask(f"activating image {image.name}", lambda: service.activate(image))

    async def _find(self, name: str) -> Snapshot | None:
        service = self._cloud.client().snapshot
        try:
            return await self._ask(f"looking for image {name}", lambda: service.get(name))
        except DaytonaNotFoundError:
            return None

    async def _at_rest(self, name: str, but: str = "") -> Snapshot | None:
        """The image in its next final state except `but`; None if there is no image (any more)."""
        while True:
            image = await self._find(name)
            if image is None or (_state(image) in _AT_REST and _state(image) != but):
                return image
            await asyncio.sleep(_POLL_S)

    async def _delete(self, image: Snapshot) -> None:
        service = self._cloud.client().snapshot
        if _state(image) != REMOVING:
            try:
                await self._ask(f"deleting image {image.name}", lambda: service.delete(image))
            except DaytonaNotFoundError:
                return
        deadline = time.monotonic() + self._config.delete_timeout_s
        while await self._find(image.name) is not None:
            if time.monotonic() > deadline:
                raise ServiceUnavailableError(
                    f"Image {image.name} is still there {self._config.delete_timeout_s:g} s after it was deleted.",
                    remedy="finqa snapshot list --sandbox daytona shows its state; try again in a few minutes",
                )
            await asyncio.sleep(_POLL_S)

    async def _all(self) -> AsyncIterator[Snapshot]:
        service = self._cloud.client().snapshot
        number = pages = 1
        while number <= pages:
            page = await self._ask("listing the images", partial(service.list, page=number, limit=_PAGE))
            for image in page.items:
                if parse_name(image.name):
                    yield cast("Snapshot", image)
            number, pages = number + 1, int(page.total_pages)

    async def _ask(self, doing: str, request: Callable[[], Awaitable[Result]]) -> Result:
        """Makes a request that may be repeated, with a time limit: the SDK's calls about images have none."""

        async def once() -> Result:
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    return await request()
            except TimeoutError as error:
                raise DaytonaTimeoutError(f"no response within {REQUEST_TIMEOUT_S:g} s") from error

        return await self._cloud.call(doing, once)


class _BuildLog:
    """Passes a build's log on line by line, without control characters, and keeps its last lines."""

    def __init__(self, on_log: Callable[[str], None]) -> None:
        self._on_log = on_log
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def hear(self, chunk: str) -> None:
        """Receives whole lines: the SDK removes the line break at the end of each piece."""
        for raw in chunk.splitlines():
            if line := _NOISE.sub("", raw).rstrip():
                self._last.append(line)
                self._on_log(line)

    def ending(self) -> str:
        """The last lines, as the end of an error message; empty if there are none."""
        return "\n".join(["", "The end of its log:", *(f"  {line}" for line in self._last)]) if self._last else ""


_under_way: set[_BuildLog] = set()
"""Builds of this process. Which build a task follows is unknown, so no such task is ended while another build runs."""


async def _end_followers() -> None:
    """Ends the tasks that follow logs: if the SDK's `create` is interrupted, they are left and fail later."""
    left = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == _FOLLOWER]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _state(image: Snapshot) -> str:
    return str(getattr(image.state, "value", image.state))


def _reason(image: Snapshot) -> str:
    return image.error_reason or _state(image)


def _described(image: Snapshot) -> ImageInfo:
    snapshot, digest = parse_name(image.name) or (image.name, "")
    state = _state(image)
    return ImageInfo(
        name=image.name,
        snapshot=snapshot,
        digest=f"sha256:{digest}",
        state=f"{state}: {image.error_reason}" if state in FAILED and image.error_reason else state,
        created=image.created_at.timestamp(),
    )


def _again(recipe: Recipe) -> str:
    return recipe.command
