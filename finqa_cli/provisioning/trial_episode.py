"""The boot test of an image: one scripted episode in a fresh sandbox, through the code that every rollout uses."""

from __future__ import annotations

import json
import time
from pathlib import Path

from finqa_cli.errors import ServiceUnavailableError
from finqa_cli.evaluation.play_episode import play
from finqa_cli.runs.durable_files import storage, write_json
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import EMBEDDED, ENVIRONMENT, Choice, Settings
from finqa_cli.settings.schema import GenerationSettings
from finqa_cli.types import ImageInfo, PolicyVersion, Trajectory

SCRIPTED = "scripted"


async def boot_test(settings: Settings, image: ImageInfo, split: str, reporter: Reporter) -> Trajectory:
    """Plays one question of the split in a sandbox of its own and ends that. Any graded answer passes.

    Raises:
        ServiceUnavailableError: No sandbox started, or the episode ended in a fault; the message has the reason.
    """
    reporter.line(f"Boot test: one scripted episode in a fresh sandbox of {image.name}.")
    chosen = settings.model_copy(
        update={
            "engine": Choice(name=SCRIPTED),
            "reward": Choice(name=ENVIRONMENT),
            "generation": GenerationSettings(),
            "data": settings.data.model_copy(update={"eval_split": split}),
        }
    )
    policy = PolicyVersion(number=0, model=EMBEDDED)
    try:
        trajectory = await play(
            chosen, policy, question=None, reporter=reporter, on_start=lambda _: None, on_turn=lambda _: None
        )
    except ServiceUnavailableError as error:
        raise _failed(settings, image, error.message, error.remedy) from error
    if trajectory.status.is_fault:
        raise _failed(settings, image, f"{trajectory.status.value}: {trajectory.error}")
    if not any(turn.observation and not turn.observation.is_error for turn in trajectory.turns):
        raise _failed(settings, image, "no tool call was answered")
    return trajectory


class PassedTests:
    """The images that passed on this machine, one small file each: a build without changes starts no sandbox."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "images"

    def has(self, image: ImageInfo) -> bool:
        """True when exactly this build of the image passed; another one of the same name has another time."""
        try:
            noted = json.loads(self._path(image.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(noted, dict) and noted.get("created") == image.created

    def add(self, image: ImageInfo) -> None:
        """Notes a pass.

        Raises:
            StorageError: The file cannot be written.
        """
        write_json(self._path(image.name), {"image": image.name, "created": image.created, "passed": time.time()})

    def forget(self, name: str) -> None:
        """Drops the note of an image that is gone. Idempotent."""
        with storage(self._path(name)):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _failed(settings: Settings, image: ImageInfo, reason: str, remedy: str = "") -> ServiceUnavailableError:
    provider, name = settings.sandbox.name, image.snapshot
    again = f"finqa snapshot build --sandbox {provider} --snapshot-name {name} tests it again"
    return ServiceUnavailableError(
        f"Image {image.name} is built but not ready: its boot test failed. {reason}",
        remedy=remedy or f"{again}; to build it anew, first finqa snapshot delete {name} --sandbox {provider}",
    )
