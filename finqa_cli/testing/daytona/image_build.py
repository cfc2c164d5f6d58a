"""Builds images from a Dockerfile and uploaded contexts: COPY and ENV are carried out, wheels are unpacked."""

from __future__ import annotations

import asyncio
import posixpath
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.dockerfile import BuildError, Step, parse
from finqa_cli.testing.daytona.loopback_images import Image
from finqa_cli.testing.daytona.storage import Storage

_PIP_INSTALL = re.compile(r"\bpip3?\s+install\b")


async def build(account: Account, storage: Storage, image: Image) -> None:
    """Takes an image from `pending` over `building` to `active` or `build_failed`.

    `RUN` is written to the log only, with one exception: `pip install` of a wheel that was copied makes its modules
    importable for the programs of the image. Everything else comes from this interpreter's own packages.
    """
    image.state = "building"
    image.notify()
    seconds = account.dice.seconds("build", account.config.latency.build)
    try:
        recipe = parse(image.dockerfile)
        image.environment = recipe.environment
        folder = account.folder / "images" / image.id
        context = folder / "context"
        await asyncio.to_thread(_unpack_contexts, storage, image, context)
        for number, step in enumerate(recipe.steps, start=1):
            image.say(f"Step {number}/{len(recipe.steps)} : {step.text}")
            await asyncio.sleep(seconds / len(recipe.steps))
            await asyncio.to_thread(_carry_out, step, image, context, folder)
        if account.config.build_fails:
            raise BuildError(account.config.build_fails)
        image.say(f"Successfully built {image.name}")
        image.state = "active"
    except (BuildError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        image.say(f"ERROR: {error}")
        image.error = str(error)
        image.state = "build_failed"
    finally:
        image.notify()


def _unpack_contexts(storage: Storage, image: Image, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for digest in image.contexts:
        archive = storage.context(digest)
        if archive is None:
            raise BuildError(f"the build context {digest} was never uploaded")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def _carry_out(step: Step, image: Image, context: Path, folder: Path) -> None:
    if step.sources:
        _copy(step, image, context, folder / "root")
    if _PIP_INSTALL.search(step.command):
        wheels = [path for inside, path in image.mounts.items() if inside.endswith(".whl")]
        for wheel in (wheel for wheel in wheels if wheel.name in step.command):
            packages = folder / "packages"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)
            if packages not in image.packages:
                image.packages.insert(0, packages)
            image.say(f"Unpacked {wheel.name}")


def _copy(step: Step, image: Image, context: Path, root: Path) -> None:
    for source in step.sources:
        origin = context / posixpath.normpath(source).lstrip("/")
        if not origin.resolve().is_relative_to(context.resolve()) or not origin.exists():
            raise BuildError(f"COPY failed: file not found in build context: {source}")
        inside = step.target.rstrip("/") or "/"
        if origin.is_file() and (step.target.endswith("/") or (root / inside.lstrip("/")).is_dir()):
            inside = posixpath.join(inside, origin.name)
        outside = root / inside.lstrip("/")
        outside.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, outside, dirs_exist_ok=True)
        else:
            shutil.copyfile(origin, outside)
        image.mounts[inside] = outside
