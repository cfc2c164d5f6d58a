"""What an image is made of, and the name that follows from it. Nothing here talks to Daytona."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.daytona.wheel import Wheel, package_wheel

if TYPE_CHECKING:
    from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig

BASE_IMAGE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
"""Python 3.12.14 on Debian 12 of 2026-08-25, all platforms; listed in github.com/docker-library/repo-info."""

FOLDER = "/opt/finqa"
SNAPSHOT_FOLDER = f"{FOLDER}/snapshot"
"""Where the compiled snapshot lies inside a sandbox: the value of FINQA_SNAPSHOT."""

REQUIREMENTS = "requirements.txt"
DOCKERFILE = "Dockerfile"
_NAME = re.compile(r"finqa-(?P<snapshot>.+)-(?P<digest>[0-9a-f]{12})")
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image before it is built.

    Attributes:
        snapshot: Name of the snapshot inside.
        digest: Hex sha256 over the snapshot, the code, its dependencies and the resources of the sandboxes.
        dockerfile: Its build, in the folder that `write_context` fills.
        wheel: Our code.
        source: Folder of the compiled snapshot on this machine.
    """

    snapshot: str
    digest: str
    dockerfile: str
    wheel: Wheel
    source: Path

    @property
    def name(self) -> str:
        """`finqa-<snapshot>-<12 hex digits>`: a change of the content changes the name."""
        return name_of(self.snapshot, self.digest)


def make_recipe(spec: ServerSpec, config: DaytonaSandboxConfig) -> Recipe:
    """The image of a spec. Reads all sources of the package at its first call, about 0.3 s.

    Raises:
        ConfigError: The server that the spec names is not part of this package, so that no image can hold it.
    """
    snapshot = served_snapshot(spec)
    wheel = package_wheel()
    if not {spec.module, f"{spec.module}.__main__"} & wheel.modules:
        raise ConfigError(
            f"The environment's server {spec.module} is not part of finqa, and images hold finqa alone.",
            remedy="--sandbox local",
        )
    return Recipe(
        snapshot=snapshot.name,
        digest=content_digest(snapshot.digest, config),
        dockerfile=_dockerfile(config.base_image or BASE_IMAGE, wheel.name),
        wheel=wheel,
        source=snapshot.path,
    )


def served_snapshot(spec: ServerSpec) -> Snapshot:
    """Return the snapshot of a spec that names a module and a snapshot.

    Raises:
        ConfigError: It does not: our images hold modules of finqa and a snapshot, and foreign images and commands are
            not supported yet.
    """
    if not spec.module or spec.snapshot is None:
        raise ConfigError(
            f"Sandboxes of Daytona serve a snapshot by a module of finqa; they cannot start {spec.server}.",
            remedy="--sandbox local, for a server that a command starts",
        )
    return spec.snapshot


def content_digest(snapshot: str, config: DaytonaSandboxConfig) -> str:
    """Hex sha256 over the digest of a snapshot and everything else that is in an image or follows from it."""
    wheel = package_wheel()
    parts = {
        "snapshot": snapshot,
        "wheel": wheel.digest,
        "requirements": hashlib.sha256(requirements()).hexdigest(),
        "dockerfile": _dockerfile(config.base_image or BASE_IMAGE, wheel.name),
        "resources": [config.cpu, config.memory_gib, config.disk_gib],
        "target": config.target,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def image_name(spec: ServerSpec, config: DaytonaSandboxConfig) -> str:
    """Name of the image that sandboxes of this spec start from."""
    return make_recipe(spec, config).name


def name_of(snapshot: str, digest: str) -> str:
    """Name of the image of a snapshot with this digest of its content."""
    return f"finqa-{snapshot}-{digest[:12]}"


def parse_name(image: str) -> tuple[str, str] | None:
    """Snapshot and digest (12 hex digits) of an image's name; None when the image is not one of ours."""
    found = _NAME.fullmatch(image)
    return (found["snapshot"], found["digest"]) if found else None


def write_context(recipe: Recipe, folder: Path) -> Path:
    """Writes everything that the build needs, readable for every user of the image; returns the Dockerfile's path."""
    (folder / recipe.wheel.name).write_bytes(recipe.wheel.content)
    (folder / REQUIREMENTS).write_bytes(requirements())
    snapshot = folder / "snapshot"
    snapshot.mkdir()
    listed = json.loads((recipe.source / _MANIFEST).read_text(encoding="utf-8"))["files"]
    for name in (_MANIFEST, *listed):
        shutil.copyfile(recipe.source / name, snapshot / name)
    dockerfile = folder / DOCKERFILE
    dockerfile.write_text(recipe.dockerfile, encoding="utf-8")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return dockerfile


def requirements() -> bytes:
    """Exact versions of everything that the server needs."""
    return files("finqa_plugins.sandboxes.daytona").joinpath(REQUIREMENTS).read_bytes()


def _dockerfile(base: str, wheel: str) -> str:
    """Dependencies stand before the code, so that a new version of it only builds the last layers."""
    pip = "python -m pip install --no-cache-dir --disable-pip-version-check"
    return "\n".join(
        (
            f"FROM {base}",
            "RUN useradd --create-home finqa",
            f"WORKDIR {FOLDER}",
            f"COPY {REQUIREMENTS} ./",
            f"RUN {pip} --requirement {REQUIREMENTS}",
            f"COPY {wheel} ./",
            f"RUN {pip} --constraint {REQUIREMENTS} './{wheel}[openenv]'",
            "COPY snapshot ./snapshot",
            "USER finqa",
            "WORKDIR /home/finqa",
            f"ENV FINQA_SNAPSHOT={SNAPSHOT_FOLDER}",
            "ENV HOST=0.0.0.0",
            "ENV PYTHONUNBUFFERED=1",
            'ENTRYPOINT ["sleep", "infinity"]',
            "",
        )
    )
