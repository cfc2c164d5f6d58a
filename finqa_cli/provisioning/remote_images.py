"""Images of snapshots at a sandbox provider: build and test one, list them, delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from finqa_cli.contracts import SandboxProvider
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.provisioning.trial_episode import PassedTests, boot_test
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import ImageInfo, ServerSpec, Trajectory
from finqa_cli.wiring.build import make_provider, open_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An image that sandboxes start from and that passed its boot test.

    Attributes:
        image: The image, as the provider lists it.
        new: False when it was there before.
        trial: The episode of its boot test; None when this image passed one before.
    """

    image: ImageInfo
    new: bool
    trial: Trajectory | None


def has_snapshot(settings: Settings) -> bool:
    """Whether the environment plays on a compiled data set at all."""
    return not registry().find("environment", settings.environment.name).snapshotless


async def build(settings: Settings, reporter: Reporter) -> Ready | None:
    """Builds the image of the settings' snapshot and tests it; None when the provider's sandboxes need no images.

    Raises:
        ConfigError: The environment runs in no sandbox.
        FinqaError: Building failed; the end of the log is in the message.
        ServiceUnavailableError: The image was built but did not pass its boot test.
    """
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"path": None})})
    async with _provider(settings) as provider:
        if not provider.builds_images:
            return None
        environment = open_environment(settings, reporter)
        if not isinstance(spec := environment.sandbox_spec(), ServerSpec):
            raise ConfigError(
                f"Environment {settings.environment.name!r} serves nothing in a sandbox, so that it needs no image.",
                remedy="--set environment.name=finqa, without environment.options.url",
            )
        image, new = await provider.build_image(spec, reporter.line)
    passed = PassedTests(settings.data.home)
    if passed.has(image):
        return Ready(image=image, new=new, trial=None)
    trial = await boot_test(settings, image, environment.splits()[0], reporter)
    passed.add(image)
    return Ready(image=image, new=new, trial=trial)


async def list_all(settings: Settings) -> Sequence[ImageInfo]:
    """The images of every snapshot; none when the provider's sandboxes need no images."""
    async with _provider(settings) as provider:
        return await provider.images()


async def delete(settings: Settings, snapshot: str) -> Sequence[str]:
    """Deletes all images of a snapshot and returns their names.

    Raises:
        ConfigError: The provider has no images.
        DataError: There is none of this snapshot.
    """
    name = settings.sandbox.name
    async with _provider(settings) as provider:
        if not provider.builds_images:
            raise ConfigError(f"Sandbox provider {name!r} has no images.", remedy="leave --sandbox out")
        deleted = await provider.delete_images(snapshot)
    for image in deleted:
        PassedTests(settings.data.home).forget(image)
    if not deleted:
        raise DataError(
            f"Sandbox provider {name!r} has no image of snapshot {snapshot!r}.",
            remedy=f"finqa snapshot list --sandbox {name}",
        )
    return deleted


@asynccontextmanager
async def _provider(settings: Settings) -> AsyncIterator[SandboxProvider]:
    provider = make_provider(settings)
    try:
        yield provider
    finally:
        await provider.close()
