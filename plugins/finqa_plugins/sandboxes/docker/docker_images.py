"""Finds, pulls, builds, lists and deletes images on this machine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.errors import ConfigError, DataError, FinqaError, SandboxError, ServiceUnavailableError
from finqa_cli.types import ImageInfo, ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import (
    BASE_IMAGE,
    ImageOptions,
    Recipe,
    build_command,
    make_recipe,
    parse_name,
    served_name,
    write_context,
)
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import IMAGE_LABEL, build_arguments
from finqa_plugins.sandboxes.docker.container_engine import Engine, missing_image

log = structlog.get_logger(__name__)

REPOSITORY = "finqa"
_LOCAL = "localhost/"
"""Prefix that podman adds to names without a registry."""


@dataclass(frozen=True, slots=True)
class RunImage:
    """The image from which containers of a spec start.

    Attributes:
        id: The engine's id of the image. A tag may be moved to another image during a run; the id stays.
        name: Its name in messages.
    """

    id: str
    name: str


class Images:
    """The images of one provider. Each image that a run needs is looked up once."""

    def __init__(self, config: DockerSandboxConfig) -> None:
        self._config = config
        self._options = ImageOptions(
            sandbox="docker",
            title="Containers",
            base_image=config.base_image or BASE_IMAGE,
            serves=True,
            own_base=config.base_image or "",
        )
        self._found: dict[object, RunImage] = {}
        self._looking = asyncio.Lock()

    async def image_of(self, engine: Engine, spec: ServerSpec) -> RunImage:
        """The image that a spec names, pulled if it is missing, or else the one that was built of the spec.

        Raises:
            ConfigError: There is no image of this name, or the server cannot run in an image.
            DataError: The image was not built yet.
            SandboxError: The engine does not answer.
        """
        key = (spec.image, spec.module, spec.source, spec.command, spec.snapshot.digest if spec.snapshot else "")
        async with self._looking:
            if key not in self._found:
                self._found[key] = await (self._named(engine, spec) if spec.image else self._built(engine, spec))
            return self._found[key]

    async def build_image(
        self, engine: Engine, spec: ServerSpec, on_log: Callable[[str], None]
    ) -> tuple[ImageInfo, bool]:
        """See `SandboxProvider.build_image`."""
        if spec.image:
            raise ConfigError(f"The image {spec.image} is already built.", remedy="finqa play --sandbox docker")
        recipe = await asyncio.to_thread(make_recipe, spec, self._options)
        tag = _tag(recipe)
        if (there := await _inspect(engine, tag)) is not None:
            return _described(tag, there), False
        with tempfile.TemporaryDirectory(prefix="finqa-image-") as folder:
            dockerfile = await asyncio.to_thread(write_context, recipe, Path(folder))
            command = build_arguments(tag, recipe.digest, str(dockerfile), recipe.arguments)
            try:
                reply = await engine.call(*command, folder, timeout_s=self._config.build_timeout_s, on_line=on_log)
            except SandboxError as error:
                remedy = "--set sandbox.options.build_timeout_s=N waits longer"
                raise ServiceUnavailableError(f"Building image {tag} failed: {error.message}", remedy=remedy) from error
        if reply.code:
            ending = "\n".join(f"  {line}" for line in reply.out.splitlines())
            raise FinqaError(f"Building image {tag} failed. The end of its log:\n{ending}", remedy=recipe.command)
        built = await _inspect(engine, tag)
        if built is None:
            raise SandboxError(f"Image {tag} was built, but {engine.name} does not find it.", remedy=recipe.command)
        return _described(tag, built), True

    async def images(self, engine: Engine) -> Sequence[ImageInfo]:
        """Images that finqa built on this machine, sorted by snapshot, then age."""
        listed = await engine.call(
            "images", f"--filter=label={IMAGE_LABEL}", "--format={{.Repository}}:{{.Tag}}", "--no-trunc"
        )
        if listed.code:
            raise SandboxError(f"{engine.name}: listing the images failed: {listed.reason}")
        tags = {tag for line in listed.out.split() if _parse(tag := line.removeprefix(_LOCAL))}
        rows = [(tag, await _inspect(engine, tag)) for tag in sorted(tags)]
        found = [_described(tag, row) for tag, row in rows if row is not None]
        return sorted(found, key=lambda image: (image.snapshot, image.created, image.name))

    async def delete_images(self, engine: Engine, snapshot: str) -> Sequence[str]:
        """Delete every image of a snapshot or folder and return their names."""
        names = sorted(image.name for image in await self.images(engine) if image.snapshot == snapshot)
        for name in names:
            reply = await engine.call("rmi", name)
            if reply.code and await _inspect(engine, name) is not None:
                raise FinqaError(
                    f"Image {name} cannot be deleted: {reply.reason}", remedy="finqa sandbox reap --sandbox docker"
                )
        return names

    async def _named(self, engine: Engine, spec: ServerSpec) -> RunImage:
        name = spec.image
        if spec.snapshot is not None:
            raise ConfigError(
                f"The image {name} contains its own data; a snapshot cannot be added to it.",
                remedy="name the server by a module",
            )
        found = await _inspect(engine, name)
        if found is None:
            if self._config.pull == "never":
                raise missing_image(engine, name)
            # Log: The image of a container is not on this machine.
            log.info("pulling an image", image=name, program=engine.name)
            reply = await engine.call("pull", "--quiet", name, timeout_s=self._config.pull_timeout_s)
            found = await _inspect(engine, name)
            if found is None:
                raise missing_image(engine, name, reply.reason)
        return RunImage(found["Id"], name)

    async def _built(self, engine: Engine, spec: ServerSpec) -> RunImage:
        recipe = await asyncio.to_thread(make_recipe, spec, self._options)
        found = await _inspect(engine, _tag(recipe))
        if found is None:
            raise DataError(
                f"There is no image of {served_name(spec, self._options)!r} with this code on this machine.",
                remedy=build_command(spec, self._options),
            )
        return RunImage(found["Id"], _tag(recipe))


async def has_image(engine: Engine, name: str) -> bool:
    """Whether an image is on this machine."""
    return await _inspect(engine, name) is not None


async def _inspect(engine: Engine, name: str) -> dict[str, Any] | None:
    """What the engine reports about the image with this name or id; None if it is not on this machine.

    Raises:
        SandboxError: The engine does not answer.
    """
    reply = await engine.call("image", "inspect", name)
    rows = json.loads(reply.out) if reply.out.strip().startswith("[") else []
    if not rows and reply.code and "connect" in reply.reason.lower():
        raise SandboxError(f"{engine.name}: looking for image {name} failed: {reply.reason}")
    return dict(rows[0]) if rows else None


def _tag(recipe: Recipe) -> str:
    """`finqa:<snapshot>-<12 hex digits>`. The snapshot is in the tag: repositories' names have no capital letters."""
    return f"{REPOSITORY}:{recipe.name.removeprefix('finqa-')}"


def _parse(tag: str) -> tuple[str, str] | None:
    repository, _, rest = tag.partition(":")
    return parse_name(f"finqa-{rest}") if repository == REPOSITORY else None


def _described(tag: str, row: dict[str, Any]) -> ImageInfo:
    snapshot, digest = _parse(tag) or (tag, "")
    created = datetime.fromisoformat(row["Created"]).timestamp()
    return ImageInfo(name=tag, snapshot=snapshot, digest=f"sha256:{digest}", state="active", created=created)
