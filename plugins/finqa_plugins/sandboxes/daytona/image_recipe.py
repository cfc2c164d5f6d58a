"""What an image is made of, and the name that follows from it. Nothing here talks to Daytona.

An image installs this package from a wheel that is made from wherever the package is imported from. Format:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finqa_cli import __version__
from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec, Snapshot
from finqa_plugins.sandboxes.daytona.source_image import FOLDER, PIP, REQUIREMENTS, dockerfile_lines, source_context

if TYPE_CHECKING:
    from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig

BASE_IMAGE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
"""Python 3.12.14 on Debian 12 of 2026-08-25, all platforms; listed in github.com/docker-library/repo-info."""

SNAPSHOT_FOLDER = f"{FOLDER}/snapshot"
"""Where the compiled snapshot lies inside a sandbox: the value of FINQA_SNAPSHOT."""

DOCKERFILE = "Dockerfile"
_NAME = re.compile(r"finqa-(?P<snapshot>.+)-(?P<digest>[0-9a-f]{12})")
_MANIFEST = "manifest.json"

DISTRIBUTION = "finqa"
PACKAGES = ("finqa_cli", "finqa_plugins")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16
_UNIX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image before it is built.

    Attributes:
        command: What builds it.
        snapshot: Name of the snapshot inside, or of the folder that has a server of another maker.
        digest: Hex sha256 over the snapshot, the code, its dependencies and the resources of the sandboxes.
        dockerfile: Its build, in the folder that `write_context` fills.
        files: Path in that folder -> content, or file on this machine.
    """

    command: str
    snapshot: str
    digest: str
    dockerfile: str
    files: Mapping[str, bytes | Path]

    @property
    def name(self) -> str:
        """`finqa-<snapshot>-<12 hex digits>`: a change of the content changes the name."""
        return name_of(self.snapshot, self.digest)


def make_recipe(spec: ServerSpec, config: DaytonaSandboxConfig) -> Recipe:
    """The image of a spec. Reads all sources of the package at its first call, about 0.3 s.

    Raises:
        ConfigError: The server that the spec names is not part of this package, so that no image can hold it.
    """
    if spec.source is not None:
        return _source_recipe(spec.source, build_command(spec), config)
    snapshot = served_snapshot(spec)
    wheel = package_wheel()
    if not {spec.module, f"{spec.module}.__main__"} & wheel.modules:
        raise ConfigError(
            f"The environment's server {spec.module} is not part of finqa, and images hold finqa alone.",
            remedy="--sandbox local",
        )
    return Recipe(
        command=build_command(spec),
        snapshot=snapshot.name,
        digest=content_digest(snapshot.digest, config),
        dockerfile=_dockerfile(config.base_image or BASE_IMAGE, wheel.name),
        files={wheel.name: wheel.content, REQUIREMENTS: requirements(), **_snapshot_files(snapshot)},
    )


def _snapshot_files(snapshot: Snapshot) -> dict[str, Path]:
    if not snapshot.path.is_dir():  # the name alone is wanted
        return {}
    listed = json.loads((snapshot.path / _MANIFEST).read_text(encoding="utf-8"))["files"]
    return {f"snapshot/{name}": snapshot.path / name for name in (_MANIFEST, *listed)}


def _source_recipe(source: ServerSource, command: str, config: DaytonaSandboxConfig) -> Recipe:
    """The image of a server of another maker."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", source.folder.name)
    dockerfile, files = source_context(source, config.base_image or BASE_IMAGE, config.base_image)
    contents = {file: hashlib.sha256(_content(content)).hexdigest() for file, content in files.items()}
    parts = {"files": contents, "dockerfile": dockerfile, **_place(config)}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Recipe(command=command, snapshot=name, digest=digest, dockerfile=dockerfile, files=files)


def _content(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _place(config: DaytonaSandboxConfig) -> dict[str, Any]:
    return {"resources": [config.cpu, config.memory_gib, config.disk_gib], "target": config.target}


def build_command(spec: ServerSpec) -> str:
    """The command that builds the image of a spec."""
    if spec.source is None:
        return f"finqa snapshot build --sandbox daytona --snapshot-name {served_name(spec)}"
    folder = shlex.quote(f"environment.options.module={spec.source.folder}")
    recipe = f"environment.options.recipe={'dockerfile' if spec.source.dockerfile else 'packages'}"
    return f"finqa snapshot build --sandbox daytona --set environment.name=openenv --set {folder} --set {recipe}"


def served_name(spec: ServerSpec) -> str:
    """What the image of a spec is called after: its snapshot, or the folder of its server."""
    return spec.source.folder.name if spec.source is not None else served_snapshot(spec).name


def served_snapshot(spec: ServerSpec) -> Snapshot:
    """Return the snapshot of a spec that names a module and a snapshot.

    Raises:
        ConfigError: It does not: images hold modules of finqa and a snapshot, or the folder of a server.
    """
    if not spec.module or spec.snapshot is None:
        raise ConfigError(
            f"Sandboxes of Daytona serve a snapshot, or the folder of an environment; they cannot start {spec.server}.",
            remedy="--set environment.options.module=FOLDER, or --sandbox local",
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
        **_place(config),
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
    for name, content in recipe.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(_content(content))
    dockerfile = folder / DOCKERFILE
    dockerfile.write_text(recipe.dockerfile, encoding="utf-8")
    for path in folder.rglob("*"):
        origin = recipe.files.get(path.relative_to(folder).as_posix())
        programs = isinstance(origin, Path) and origin.stat().st_mode & 0o100  # scripts that a build runs
        path.chmod(0o755 if path.is_dir() or programs else 0o644)
    return dockerfile


def requirements() -> bytes:
    """Exact versions of everything that the server needs."""
    return files("finqa_plugins.sandboxes.daytona").joinpath(REQUIREMENTS).read_bytes()


def _dockerfile(base: str, wheel: str) -> str:
    """Dependencies stand before the code, so that a new version of it only builds the last layers."""
    steps = (
        f"RUN {PIP} --requirement {REQUIREMENTS}",
        f"COPY {wheel} ./",
        f"RUN {PIP} --constraint {REQUIREMENTS} './{wheel}[openenv]'",
        "COPY snapshot ./snapshot",
    )
    return dockerfile_lines(base, steps, {"FINQA_SNAPSHOT": SNAPSHOT_FOLDER})


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file.

    Attributes:
        name: `finqa-<version>-py3-none-any.whl`.
        content: Its bytes: the same for the same sources on any machine, at any time and in any kind of installation.
        modules: Dotted names of the modules in it.
    """

    name: str
    content: bytes
    modules: frozenset[str]

    @property
    def digest(self) -> str:
        """Hex sha256 of the bytes."""
        return hashlib.sha256(self.content).hexdigest()


@lru_cache(maxsize=1)
def package_wheel() -> Wheel:
    """The wheel of the running package, read once per process.

    It holds Python sources only, so neither weights nor anything that lies about in a checkout: a server needs no more.

    Raises:
        ConfigError: The package is not installed, or was imported from something else than files.
    """
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError as error:
        raise ConfigError(
            "finqa runs here without being installed, so no wheel of it can be made.", remedy="pip install -e ."
        ) from error
    sources = {name: path.read_bytes() for package in PACKAGES for name, path in _sources(package)}
    modules = frozenset(_module(name) for name in sources)
    return Wheel(f"{DISTRIBUTION}-{__version__}-py3-none-any.whl", _packed({**sources, **_about(installed)}), modules)


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """Name in the wheel and path of each module; files that no import can name are none of ours."""
    spec = importlib.util.find_spec(package)
    root = Path(((spec and spec.submodule_search_locations) or [""])[0])
    if not (root / "__init__.py").is_file():
        raise ConfigError(
            f"{package} is not a folder of files here, so no wheel of it can be made.",
            remedy=f"pip install --force-reinstall {DISTRIBUTION}",
        )
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if path.is_file() and all(part.isidentifier() for part in parts):
            yield "/".join((package, *parts)) + ".py", path


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _about(installed: Distribution) -> Mapping[str, bytes]:
    """The files of `.dist-info` but RECORD. No description in them: another README makes no other image."""
    info = f"{DISTRIBUTION}-{__version__}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        *(f"{field}: {value}" for field in ("Requires-Python", "Provides-Extra") for value in _all(installed, field)),
        *(f"Requires-Dist: {requirement}" for requirement in sorted(installed.requires or ())),
    ]
    entries: dict[str, list[str]] = {}
    for entry in sorted(installed.entry_points):
        entries.setdefault(entry.group, []).append(f"{entry.name} = {entry.value}")
    sections = ["\n".join([f"[{group}]", *lines, ""]) for group, lines in sorted(entries.items())]
    return {
        f"{info}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: finqa\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(sections).encode(),
    }


def _all(installed: Distribution, field: str) -> list[str]:
    return sorted(installed.metadata.get_all(field) or ())


def _packed(files: Mapping[str, bytes]) -> bytes:
    """A zip of the files and their RECORD, sorted and stored: what compresses differs between versions of zlib."""
    record = f"{DISTRIBUTION}-{__version__}.dist-info/RECORD"
    lines = [f"{name},sha256={_checksum(content)},{len(content)}\n" for name, content in sorted(files.items())]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]).encode())]:
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.create_system, entry.external_attr = _UNIX, _REGULAR_FILE
            archive.writestr(entry, content)
    return buffer.getvalue()


def _checksum(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
