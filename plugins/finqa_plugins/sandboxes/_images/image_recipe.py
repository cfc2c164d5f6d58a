"""What an image of a server is made of, and the name that follows from it. Nothing here talks to a provider."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec, Snapshot
from finqa_plugins.sandboxes._images.package_wheel import package_wheel

BASE_IMAGE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
"""Python 3.12.14 on Debian 12 of 2026-08-25, all platforms; listed in github.com/docker-library/repo-info."""

FOLDER = "/opt/finqa"
SNAPSHOT_FOLDER = f"{FOLDER}/snapshot"
"""Where the compiled snapshot lies inside a sandbox: the value of FINQA_SNAPSHOT."""

REQUIREMENTS = "requirements.txt"
DOCKERFILE = "Dockerfile"
_NAME = re.compile(r"finqa-(?P<snapshot>.+)-(?P<digest>[0-9a-f]{12})")
_MANIFEST = "manifest.json"

SERVER_FOLDER = f"{FOLDER}/server"
"""Where the folder of a server of another maker lies."""

_PIP = "python -m pip install --no-cache-dir --disable-pip-version-check"
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})
_WAITING = ("sleep", "infinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """What the images of one provider have in common.

    Attributes:
        sandbox: The provider, as `--sandbox` takes it.
        title: What messages call its sandboxes.
        base_image: Image with Python to build upon.
        place: What else makes another image, such as the resources of its sandboxes.
        serves: The image's own command starts the server. Otherwise it waits for commands, and the provider starts it.
        own_dockerfile: A folder's own Dockerfile is used where there is one.
    """

    sandbox: str
    title: str
    base_image: str = BASE_IMAGE
    place: Mapping[str, Any] = field(default_factory=dict)
    serves: bool = False
    own_dockerfile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image before it is built.

    Attributes:
        command: What builds it.
        snapshot: Name of the snapshot inside, or of the folder that has a server of another maker.
        digest: Hex sha256 over the snapshot, the code, its dependencies and the resources of the sandboxes.
        dockerfile: Its build, in the folder that `write_context` fills.
        files: Path in that folder -> content, or file on this machine.
        dockerfile_path: Where the Dockerfile lies in that folder.
        arguments: Arguments of the build (`ARG` in the Dockerfile).
    """

    command: str
    snapshot: str
    digest: str
    dockerfile: str
    files: Mapping[str, bytes | Path]
    dockerfile_path: str = DOCKERFILE
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`finqa-<snapshot>-<12 hex digits>`: a change of the content changes the name."""
        return name_of(self.snapshot, self.digest)


def make_recipe(spec: ServerSpec, options: ImageOptions) -> Recipe:
    """The image of a spec. Reads all sources of the package at its first call, about 0.3 s.

    Raises:
        ConfigError: The server that the spec names is not part of this package, so that no image can hold it.
    """
    if spec.source is not None:
        dockerfile = _own_dockerfile(spec.source.folder) if options.own_dockerfile else None
        if dockerfile is not None:
            return _own_recipe(build_command(spec, options), spec.source.folder, dockerfile, options)
        return _source_recipe(spec, spec.source, options)
    snapshot = served_snapshot(spec, options)
    wheel, command = package_wheel(), _image_command(spec, options)
    if not {spec.module, f"{spec.module}.__main__"} & wheel.modules:
        raise ConfigError(
            f"The environment's server {spec.module} is not part of finqa, and images hold finqa alone.",
            remedy="--sandbox local",
        )
    return Recipe(
        command=build_command(spec, options),
        snapshot=snapshot.name,
        digest=content_digest(snapshot.digest, options, command),
        dockerfile=_dockerfile(options.base_image, wheel.name, command),
        files={wheel.name: wheel.content, REQUIREMENTS: requirements(), **_snapshot_files(snapshot)},
    )


def _snapshot_files(snapshot: Snapshot) -> dict[str, Path]:
    if not snapshot.path.is_dir():  # the name alone is wanted
        return {}
    listed = json.loads((snapshot.path / _MANIFEST).read_text(encoding="utf-8"))["files"]
    return {f"snapshot/{name}": snapshot.path / name for name in (_MANIFEST, *listed)}


def _source_recipe(spec: ServerSpec, source: ServerSource, options: ImageOptions) -> Recipe:
    """The image of a server of another maker: its requirements and its folder."""
    files: dict[str, bytes | Path] = {REQUIREMENTS: "".join(f"{one}\n" for one in source.requirements).encode()}
    files |= {f"server/{source.folder.name}/{name}": path for name, path in _folder_files(source.folder).items()}
    steps = (f"RUN {_PIP} --requirement {REQUIREMENTS}", "COPY server ./server")
    dockerfile = _lines(options.base_image, steps, (), _image_command(spec, options))
    return _folder_recipe(source.folder, build_command(spec, options), options, dockerfile, files)


def _own_dockerfile(folder: Path) -> str | None:
    """The folder's own Dockerfile, looked for where OpenEnv's `openenv build` does."""
    return next((place for place in (f"server/{DOCKERFILE}", DOCKERFILE) if (folder / place).is_file()), None)


def _own_recipe(command: str, folder: Path, dockerfile: str, options: ImageOptions) -> Recipe:
    """The image that a folder's own Dockerfile makes, from the files and arguments that `openenv build` gives it."""
    text = (folder / dockerfile).read_text(encoding="utf-8")
    recipe = _folder_recipe(folder, command, options, text, _folder_files(folder))
    arguments = {"BUILD_MODE": "standalone", "ENV_NAME": folder.name.replace("_env", "")}
    return replace(recipe, dockerfile_path=dockerfile, arguments=arguments)


def _folder_recipe(
    folder: Path, command: str, options: ImageOptions, dockerfile: str, files: Mapping[str, bytes | Path]
) -> Recipe:
    contents = {file: (_mode(content), _sha256(_content(content))) for file, content in files.items()}
    parts = {"files": contents, "dockerfile": dockerfile, **options.place}
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.name)
    return Recipe(command=command, snapshot=name, digest=_digest(parts), dockerfile=dockerfile, files=files)


def _folder_files(folder: Path) -> dict[str, bytes | Path]:
    """Path in the folder -> file. Hidden files, which keys may be in, and what programs left behind stay outside."""
    found: dict[str, bytes | Path] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part in _LEFT_OUT or part.startswith(".") for part in inside.parts):
            found[inside.as_posix()] = path
    return found


def _digest(parts: Mapping[str, object]) -> str:
    return _sha256(json.dumps(parts, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _mode(content: bytes | Path) -> int:
    """Readable for every user of the image; a program stays one."""
    return 0o755 if isinstance(content, Path) and content.stat().st_mode & stat.S_IXUSR else 0o644


def build_command(spec: ServerSpec, options: ImageOptions) -> str:
    """The command that builds the image of a spec."""
    build = f"finqa snapshot build --sandbox {options.sandbox}"
    if spec.source is None:
        return f"{build} --snapshot-name {served_name(spec, options)}"
    folder = shlex.quote(f"environment.options.module={spec.source.folder}")
    return f"{build} --set environment.name=openenv --set {folder}"


def served_name(spec: ServerSpec, options: ImageOptions) -> str:
    """What the image of a spec is called after: its snapshot, or the folder of its server."""
    return spec.source.folder.name if spec.source is not None else served_snapshot(spec, options).name


def served_snapshot(spec: ServerSpec, options: ImageOptions) -> Snapshot:
    """Return the snapshot of a spec that names a module and a snapshot.

    Raises:
        ConfigError: It does not: images hold modules of finqa and a snapshot, or the folder of a server.
    """
    if not spec.module or spec.snapshot is None:
        raise ConfigError(
            f"{options.title} serve a snapshot, or the folder of an environment; they cannot start {spec.server}.",
            remedy="--sandbox docker" if spec.image else "--set environment.options.module=FOLDER, or --sandbox local",
        )
    return spec.snapshot


def content_digest(snapshot: str, options: ImageOptions, command: Sequence[str] = _WAITING) -> str:
    """Hex sha256 over the digest of a snapshot and everything else that is in an image or follows from it.

    `command` is what the image starts.
    """
    wheel = package_wheel()
    parts = {
        "snapshot": snapshot,
        "wheel": wheel.digest,
        "requirements": _sha256(requirements()),
        "dockerfile": _dockerfile(options.base_image, wheel.name, command),
        **options.place,
    }
    return _digest(parts)


def name_of(snapshot: str, digest: str) -> str:
    """Name of the image of a snapshot with this digest of its content."""
    return f"finqa-{snapshot}-{digest[:12]}"


def parse_name(image: str) -> tuple[str, str] | None:
    """Snapshot and digest (12 hex digits) of an image's name; None when the image is not one of ours."""
    found = _NAME.fullmatch(image)
    return (found["snapshot"], found["digest"]) if found else None


def write_context(recipe: Recipe, folder: Path) -> Path:
    """Writes everything that the build needs, readable for every user of the image; returns the Dockerfile's path."""
    dockerfile = folder / recipe.dockerfile_path
    for name, content in {**recipe.files, recipe.dockerfile_path: recipe.dockerfile.encode()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(_content(content))
        (folder / name).chmod(_mode(content))
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    return dockerfile


def server_command(spec: ServerSpec) -> tuple[str, ...]:
    """The program and arguments that start the server of a spec inside its image."""
    if spec.source is None:
        return ("python", "-m", spec.module)
    where = ("--app-dir", SERVER_FOLDER, "--host", "0.0.0.0", "--port", str(spec.port), "--log-level", "warning")
    return ("python", "-m", "uvicorn", spec.source.app, *where)


def requirements() -> bytes:
    """Exact versions of everything that the server needs."""
    return files("finqa_plugins.sandboxes._images").joinpath(REQUIREMENTS).read_bytes()


def _image_command(spec: ServerSpec, options: ImageOptions) -> tuple[str, ...]:
    return server_command(spec) if options.serves else _WAITING


def _dockerfile(base: str, wheel: str, command: Sequence[str]) -> str:
    """Dependencies stand before the code, so that a new version of it only builds the last layers."""
    steps = (
        f"RUN {_PIP} --requirement {REQUIREMENTS}",
        f"COPY {wheel} ./",
        f"RUN {_PIP} --constraint {REQUIREMENTS} './{wheel}[openenv]'",
        "COPY snapshot ./snapshot",
    )
    return _lines(base, steps, (f"ENV FINQA_SNAPSHOT={SNAPSHOT_FOLDER}",), command)


def _lines(base: str, steps: Sequence[str], variables: Sequence[str], command: Sequence[str]) -> str:
    return "\n".join(
        (
            f"FROM {base}",
            "RUN useradd --create-home finqa",
            f"WORKDIR {FOLDER}",
            f"COPY {REQUIREMENTS} ./",
            *steps,
            "USER finqa",
            "WORKDIR /home/finqa",
            *variables,
            "ENV HOST=0.0.0.0",
            "ENV PYTHONUNBUFFERED=1",
            f"ENTRYPOINT {json.dumps(command)}",
            "",
        )
    )
