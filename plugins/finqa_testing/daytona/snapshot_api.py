"""`/api/snapshots`: builds images from Dockerfiles and uploaded contexts, and shows, activates and deletes images."""

from __future__ import annotations

import asyncio
import math
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from finqa_testing.daytona.account import Account
from finqa_testing.daytona.dockerfile import BuildError, Step, parse
from finqa_testing.daytona.http_service import Endpoint, Refusal, json_body, number, text, texts_list, whole
from finqa_testing.daytona.loopback_sandboxes import LoopbackImage, host_path
from finqa_testing.daytona.storage import Storage

PAGE = 100
SDK_POLL_S = 1.0
PROJECT = "pyproject.toml"
FOLLOWED = ("pending", "building")
_PIP_INSTALL = re.compile(r"\bpip3?\s+install\b")


class SnapshotApi:
    """The handlers of one account; URLs that they return begin with `origin`, such as `http://127.0.0.1:PORT`."""

    def __init__(self, account: Account, storage: Storage, origin: str) -> None:
        self._account = account
        self._storage = storage
        self._origin = origin

    def endpoints(self) -> list[Endpoint]:
        """Returns the routes."""
        image = "/api/snapshots/{image}"
        return [
            ("POST", "/api/snapshots", self.create),
            ("GET", "/api/snapshots", self.list),
            ("GET", image, self.get),
            ("DELETE", image, self.delete),
            ("POST", f"{image}/activate", self.activate),
            ("POST", f"{image}/deactivate", self.deactivate),
            ("GET", f"{image}/build-logs-url", self.logs_url),
            ("GET", f"{image}/build-logs", self.logs),
            ("GET", "/api/object-storage/push-access", self._storage.push_access),
        ]

    async def create(self, request: Request) -> Response:
        """Begins to build an image from a Dockerfile; the image of a registry becomes one without files."""
        body = await json_body(request)
        name = text(body, "name")
        if not name:
            raise Refusal(400, "name is required")
        if any(image.name == name for image in self._account.images.values()):
            raise Refusal(409, f'Snapshot with name "{name}" already exists for this organization')
        # The SDK follows the log only of an image that is `building`; a short build would end before it asks again.
        state = "pending" if self._account.config.latency.build.median_s > SDK_POLL_S else "building"
        image = LoopbackImage(self._account.random.identifier(), name, state=state)
        image.cpu, image.memory_gib = number(body, "cpu", 1), number(body, "memory", 1)
        image.disk_gib = number(body, "disk", 3)
        image.broken = name in self._account.config.broken_images
        recipe = body.get("buildInfo")
        if isinstance(recipe, dict):
            image.dockerfile = text(recipe, "dockerfileContent")
            image.contexts = texts_list(recipe, "contextHashes")
        elif reference := text(body, "imageName"):
            image.dockerfile = f"FROM {reference}"
        else:
            raise Refusal(400, "buildInfo or imageName is required")
        self._account.images[image.id] = image
        self._account.run(self._build(image))
        return JSONResponse(image.dto())

    async def list(self, request: Request) -> Response:
        """Lists images by pages, newest first."""
        images = sorted(self._account.images.values(), key=lambda image: -image.created)
        query = request.query_params
        page, limit = whole(query.get("page") or "1", "page"), whole(query.get("limit") or str(PAGE), "limit")
        if page < 1 or limit < 1:
            raise Refusal(400, "page and limit must be positive")
        body = {
            "items": [image.dto() for image in images[(page - 1) * limit : page * limit]],
            "total": len(images),
            "page": page,
            "totalPages": max(1, math.ceil(len(images) / limit)),
        }
        return JSONResponse(body)

    async def get(self, _: Request, image: str) -> Response:
        """Returns one image, by id or name."""
        return JSONResponse(self._account.image(image).dto())

    async def delete(self, _: Request, image: str) -> Response:
        """Begins to delete an image; its name remains in use until the image is removed."""
        found = self._account.images.get(image)
        if found is None:
            raise Refusal(404, f"Snapshot {image} not found")
        if found.state != "removing":
            found.state = "removing"
            found.notify()
            delay = self._account.random.seconds("delete", self._account.config.latency.delete)
            self._account.later(delay, lambda: self._account.forget_image(found))
        return Response()

    async def activate(self, _: Request, image: str) -> Response:
        """Makes an inactive image usable again."""
        return self._change(image, "inactive", "active")

    async def deactivate(self, _: Request, image: str) -> Response:
        """Makes an active image unusable."""
        self._change(image, "active", "inactive")
        return Response(status_code=204)

    async def logs_url(self, request: Request, image: str) -> Response:
        """Returns the URL of the log of an image's build."""
        found = self._account.image(image)
        return JSONResponse({"url": f"{self._origin}/api/snapshots/{found.id}/build-logs"})

    async def logs(self, request: Request, image: str) -> Response:
        """Sends the log of a build; with `follow=true` until the build ends."""
        found = self._account.image(image)
        follow = request.query_params.get("follow") == "true"
        return StreamingResponse(_lines(found, follow=follow), media_type="text/plain")

    def _change(self, id_or_name: str, before: str, after: str) -> Response:
        found = self._account.image(id_or_name)
        if found.state != before:
            raise Refusal(400, f"Snapshot {found.name} is {found.state}, not {before}")
        found.state = after
        return JSONResponse(found.dto())

    async def _build(self, image: LoopbackImage) -> None:
        """Builds an image, whose state changes to `building` and then to `active` or `build_failed`.

        `COPY` (also from another stage) and `ENV` are executed. `RUN` is only written to the log, with one exception:
        `pip install` of a wheel or of a project's folder that was copied makes its modules importable for the programs
        of the image. All other packages are those of this interpreter. Files that `RUN` would have made are missing,
        and a stage that copies them continues without them.
        """
        account = self._account
        image.state = "building"
        image.notify()
        seconds = account.random.seconds("build", account.config.latency.build)
        try:
            recipe = parse(image.dockerfile)
            image.environment = recipe.environment
            folder = account.folder / "images" / image.id
            context = folder / "context"
            await asyncio.to_thread(_unpack_contexts, self._storage, image, context)
            stages: dict[str, dict[str, Path]] = {}
            for number, step in enumerate(recipe.steps, start=1):
                image.write_log(f"Step {number}/{len(recipe.steps)} : {step.text}")
                await asyncio.sleep(seconds / len(recipe.steps))
                if step.stage:
                    image.mounts = stages[step.stage] = stages[str(len(stages))] = {}
                await asyncio.to_thread(_carry_out, step, image, Places(context, folder, stages))
            if account.config.build_fails:
                raise BuildError(account.config.build_fails)
            image.write_log(f"Successfully built {image.name}")
            image.state = "active"
        except (BuildError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            image.write_log(f"ERROR: {error}")
            image.error = str(error)
            image.state = "build_failed"
        finally:
            image.notify()


async def _lines(image: LoopbackImage, *, follow: bool) -> AsyncIterator[bytes]:
    sent = 0
    while True:
        changed, over = image.changed, image.state not in FOLLOWED
        for line in image.log[sent:]:
            yield f"{line}\n".encode()
        sent = len(image.log)
        if over or not follow:
            return
        await changed.wait()


def _unpack_contexts(storage: Storage, image: LoopbackImage, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for digest in image.contexts:
        archive = storage.context(digest)
        if archive is None:
            raise BuildError(f"the build context {digest} was never uploaded")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that a build reads and writes.

    Attributes:
        context: The unpacked build context.
        folder: Folder of the image on this machine.
        stages: Number or name of a stage -> its mounts: path inside it -> file or folder on this machine.
    """

    context: Path
    folder: Path
    stages: dict[str, dict[str, Path]]

    def root(self) -> Path:
        """Returns the folder of the current stage's files."""
        return self.folder / f"root-{len(self.stages)}"


def _carry_out(step: Step, image: LoopbackImage, places: Places) -> None:
    if step.sources:
        _copy(step, image, places)
    if not _PIP_INSTALL.search(step.command):
        return
    for inside, outside in image.mounts.items():
        packages = places.folder / "packages"
        if inside.endswith(".whl") and outside.name in step.command:
            with zipfile.ZipFile(outside) as archive:
                archive.extractall(packages)
            image.write_log(f"Unpacked {outside.name}")
        else:
            projects = [
                word for word in step.command.split() if (outside / word.rpartition("/")[2] / PROJECT).is_file()
            ]
            if not projects:
                continue
            for project in projects:
                _install(outside / project.rpartition("/")[2], packages)
                image.write_log(f"Installed {project}")
        if packages not in image.packages:
            image.packages.insert(0, packages)


def _install(project: Path, packages: Path) -> None:
    """Installs a project by pip, with the build tools of this interpreter and without its requirements."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--upgrade", "--target", str(packages), str(project)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"pip could not install {project.name}: {done.stderr.strip()[-500:]}")


def _copy(step: Step, image: LoopbackImage, places: Places) -> None:
    for source in step.sources:
        origin = _origin(step, source, places)
        if origin is None:
            image.write_log(f"{source} is not in {step.origin}: what RUN makes is not made here")
            continue
        inside = step.target.rstrip("/") or "/"
        if origin.is_file() and (step.target.endswith("/") or (places.root() / inside.lstrip("/")).is_dir()):
            inside = posixpath.join(inside, origin.name)
        outside = places.root() / inside.lstrip("/")
        outside.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, outside, dirs_exist_ok=True)
        else:
            shutil.copyfile(origin, outside)
        image.mounts[inside] = outside


def _origin(step: Step, source: str, places: Places) -> Path | None:
    """Returns the path of a source on this machine; None if another stage does not have it.

    Raises:
        BuildError: The build context does not have the source.
    """
    if step.origin:
        found = host_path(places.stages.get(step.origin, {}), source)
        return Path(found) if found and Path(found).exists() else None
    origin = places.context / posixpath.normpath(source).lstrip("/")
    if not origin.resolve().is_relative_to(places.context.resolve()) or not origin.exists():
        raise BuildError(f"COPY failed: file not found in build context: {source}")
    return origin
