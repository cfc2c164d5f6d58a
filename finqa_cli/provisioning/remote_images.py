"""Images of snapshots at a sandbox provider: build and test one, list them, delete them.

The boot test of an image is one scripted episode in a fresh sandbox, through the code that every rollout uses.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import SandboxProvider
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, ServiceUnavailableError
from finqa_cli.evaluation.play_question import play
from finqa_cli.extend import registry
from finqa_cli.runs.durable_files import storage, write_json
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import EMBEDDED, ENVIRONMENT, Choice, Settings
from finqa_cli.settings.schema import GenerationSettings
from finqa_cli.types import ImageInfo, PolicyVersion, ServerSpec, Trajectory
from finqa_cli.wiring.build import make_provider, open_environment

SCRIPTED, RANDOM = "scripted", "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An image that sandboxes start from and that passed its boot test.

    Attributes:
        image: The image, as the provider lists it.
        new: False if it existed before.
        trial: The episode of its boot test; None if this image passed one before.
    """

    image: ImageInfo
    new: bool
    trial: Trajectory | None


def has_snapshot(settings: Settings) -> bool:
    """Returns whether the environment uses a compiled data set."""
    return not registry().find("environment", settings.environment.name).snapshotless


def needs_image(settings: Settings, reporter: Reporter) -> bool:
    """Returns whether the environment has a server that an image can be built of."""
    spec = open_environment(settings, reporter).sandbox_spec()
    return isinstance(spec, ServerSpec) and bool(spec.snapshot or spec.source)


async def build(settings: Settings, reporter: Reporter) -> Ready | None:
    """Builds and tests the image of the settings' snapshot or server; returns None if sandboxes need no images.

    Raises:
        ConfigError: The environment runs in no sandbox.
        FinqaError: Building failed; the end of the log is in the message.
        ServiceUnavailableError: The image was built but did not pass its boot test.
    """
    if has_snapshot(settings):
        settings = settings.model_copy(update={"data": settings.data.model_copy(update={"path": None})})
    async with _provider(settings) as provider:
        if not provider.builds_images:
            return None
        environment = open_environment(settings, reporter)
        if not isinstance(spec := environment.sandbox_spec(), ServerSpec):
            raise ConfigError(
                f"Environment {settings.environment.name!r} runs no server in a sandbox, so it needs no image.",
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
    """Returns the images of every snapshot; () if the provider's sandboxes need no images."""
    async with _provider(settings) as provider:
        return await provider.images()


async def delete(settings: Settings, snapshot: str) -> Sequence[str]:
    """Deletes all images of a snapshot and returns their names.

    Raises:
        ConfigError: The provider has no images.
        DataError: The snapshot has no image.
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


async def boot_test(settings: Settings, image: ImageInfo, split: str, reporter: Reporter) -> Trajectory:
    """Plays one question of the split in a new sandbox, which is ended afterwards. Any graded answer passes.

    Raises:
        ServiceUnavailableError: No sandbox started, or the episode ended in a fault; the message has the reason.
    """
    engine = SCRIPTED if has_snapshot(settings) else RANDOM  # environments without a snapshot may have no expert
    reporter.line(f"Boot test: one {engine} episode in a fresh sandbox of {image.name}.")
    chosen = settings.model_copy(
        update={
            "engine": Choice(name=engine),
            "reward": Choice(name=ENVIRONMENT),
            "generation": GenerationSettings(),
            "data": settings.data.model_copy(update={"eval_split": split}),
        }
    )
    policy = PolicyVersion(number=0, model=EMBEDDED)
    try:
        watched = await play(
            chosen, policy, question=None, reporter=reporter, on_start=lambda _: None, on_turn=lambda _: None
        )
    except ServiceUnavailableError as error:
        raise _failed(settings, image, error.message, error.remedy) from error
    trajectory = watched.trajectory
    if trajectory.status.is_fault:
        raise _failed(settings, image, f"{trajectory.status.value}: {trajectory.error}")
    if not any(turn.observation and not turn.observation.is_error for turn in trajectory.turns):
        raise _failed(settings, image, "no tool call was answered")
    return trajectory


class PassedTests:
    """Records which images passed, one small file each, so that a build without changes starts no sandbox."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "images"

    def has(self, image: ImageInfo) -> bool:
        """Returns True if exactly this build of the image passed; another build of the name has another time."""
        try:
            noted = parse_json(self._path(image.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(noted, dict) and noted.get("created") == image.created

    def add(self, image: ImageInfo) -> None:
        """Records that an image passed.

        Raises:
            StorageError: The file cannot be written.
        """
        write_json(self._path(image.name), {"image": image.name, "created": image.created, "passed": time.time()})

    def forget(self, name: str) -> None:
        """Deletes the record of an image that no longer exists. Idempotent.

        Raises:
            StorageError: The file cannot be deleted.
        """
        with storage(self._path(name)):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _failed(settings: Settings, image: ImageInfo, reason: str, remedy: str = "") -> ServiceUnavailableError:
    provider, name = settings.sandbox.name, image.snapshot
    again = f"finqa snapshot build --sandbox {provider} --snapshot-name {name} tests it again"
    if not has_snapshot(settings):
        again = "the same command tests it again"
    return ServiceUnavailableError(
        f"Image {image.name} is built but not ready: its test failed. {reason}",
        remedy=remedy or f"{again}; to build it again, first finqa snapshot delete {name} --sandbox {provider}",
    )
