"""The contents of a server's image, and its name. Independent of providers."""

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
from types import MappingProxyType
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec, Snapshot
from finqa_plugins.sandboxes._images.own_dockerfile import folder_files, read_dockerfile, with_base
from finqa_plugins.sandboxes._images.package_wheel import package_wheel

BASE_IMAGE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
"""Python 3.12.14 on Debian 12 of 2026-08-25, all platforms; listed in github.com/docker-library/repo-info."""

FOLDER = "/opt/finqa"
SNAPSHOT_FOLDER = f"{FOLDER}/snapshot"
"""Path of the compiled snapshot inside a sandbox: the value of FINQA_SNAPSHOT."""

REQUIREMENTS = "requirements.txt"
DOCKERFILE = "Dockerfile"
_NAME = re.compile(r"finqa-(?P<snapshot>.+)-(?P<digest>[0-9a-f]{12})")
_MANIFEST = "manifest.json"

SERVER_FOLDER = f"{FOLDER}/server"
"""Path of the folder of a server by another author."""

_PIP = "python -m pip install --no-cache-dir --disable-pip-version-check"
_WAITING = ("sleep", "infinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options that all images of one provider share.

    Attributes:
        sandbox: The provider, as `--sandbox` takes it.
        title: Name of its sandboxes in messages.
        base_image: Base image with Python.
        place: Further values on which images depend, such as the resources of sandboxes.
        serves: Whether the image's command starts the server. Otherwise the image waits for commands, and the provider
            starts the server.
        own_base: Base image that replaces the one in a folder's own Dockerfile; empty: no replacement.
    """

    sandbox: str
    title: str
    base_image: str = BASE_IMAGE
    place: Mapping[str, Any] = field(default_factory=dict)
    serves: bool = False
    own_base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image before it is built.

    Attributes:
        command: Command that builds it.
        snapshot: Name of the snapshot in it, or of the folder of another author's server.
        digest: Hex sha256 over the snapshot, the code, its dependencies and the resources of the sandboxes.
        dockerfile: Text of the Dockerfile, for the build folder that `write_context` fills.
        files: Path in that folder -> content, or file on this machine.
        dockerfile_path: Path of the Dockerfile in that folder.
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
    """The recipe of a spec. The first call reads all sources of the package, in about 0.3 s.

    Raises:
        ConfigError: The server that the spec names is not part of this package, so that no image can contain it.
    """
    if spec.source is not None:
        make = _source_recipe if spec.source.dockerfile is None else _own_recipe
        return make(spec, spec.source, options)
    snapshot = served_snapshot(spec, options)
    wheel, command = package_wheel(), _image_command(spec, options)
    if not {spec.module, f"{spec.module}.__main__"} & wheel.modules:
        raise ConfigError(
            f"The environment's server {spec.module} is not part of finqa, and images contain only finqa.",
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
    if not snapshot.path.is_dir():  # only the name is needed
        return {}
    listed = json.loads((snapshot.path / _MANIFEST).read_text(encoding="utf-8"))["files"]
    return {f"snapshot/{name}": snapshot.path / name for name in (_MANIFEST, *listed)}


def _source_recipe(spec: ServerSpec, source: ServerSource, options: ImageOptions) -> Recipe:
    """The recipe for another author's server: its requirements, its folder and the wheel of its project."""
    files: dict[str, bytes | Path] = {REQUIREMENTS: "".join(f"{one}\n" for one in source.requirements).encode()}
    package = source.app.partition(".")[0]
    files |= folder_files(source.folder, f"server/{package}/")
    steps = [f"RUN {_PIP} --requirement {REQUIREMENTS}", "COPY server ./server"]
    if source.project:  # pip builds its wheel, for imports by package name and for its metadata
        steps.append(f"RUN {_PIP} --no-deps ./server/{package}")
    dockerfile = _lines(options.base_image, steps, (), _image_command(spec, options))
    return _folder_recipe(source.folder, build_command(spec, options), options, dockerfile, files)


def _own_recipe(spec: ServerSpec, source: ServerSource, options: ImageOptions) -> Recipe:
    """The recipe for a folder with its own Dockerfile, with the build arguments of `openenv build`.

    An image that waits for commands gets another entry point, and the files that Daytona's SDK would send.
    """
    assert source.dockerfile is not None
    command = build_command(spec, options)
    if not options.serves:
        own = read_dockerfile(source.dockerfile, source.folder, options.own_base or None)
        return _folder_recipe(source.folder, command, options, own.text, own.files)
    text = source.dockerfile.read_text(encoding="utf-8")
    arguments = {"BUILD_MODE": "standalone", "ENV_NAME": source.folder.name.replace("_env", "")}
    if options.own_base:
        text = with_base(source.dockerfile, text, options.own_base)
    recipe = _folder_recipe(source.folder, command, options, text, folder_files(source.folder), arguments)
    path = source.dockerfile.relative_to(source.folder).as_posix()
    return replace(recipe, dockerfile_path=path, arguments=arguments)


def _folder_recipe(
    folder: Path,
    command: str,
    options: ImageOptions,
    dockerfile: str,
    files: Mapping[str, bytes | Path],
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> Recipe:
    contents = {file: (_mode(content), _sha256(_content(content))) for file, content in files.items()}
    parts = {"files": contents, "dockerfile": dockerfile, "arguments": dict(arguments), **options.place}
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.name)
    return Recipe(command=command, snapshot=name, digest=_digest(parts), dockerfile=dockerfile, files=files)


def _digest(parts: Mapping[str, object]) -> str:
    return _sha256(json.dumps(parts, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _mode(content: bytes | Path) -> int:
    """File mode: readable for every user of the image; executable files stay executable."""
    return 0o755 if isinstance(content, Path) and content.stat().st_mode & stat.S_IXUSR else 0o644


def build_command(spec: ServerSpec, options: ImageOptions) -> str:
    """The command that builds the image of a spec."""
    build = f"finqa snapshot build --sandbox {options.sandbox}"
    if spec.source is None:
        return f"{build} --snapshot-name {served_name(spec, options)}"
    folder = shlex.quote(f"environment.options.module={spec.source.folder}")
    recipe = f"environment.options.recipe={'packages' if spec.source.dockerfile is None else 'dockerfile'}"
    return f"{build} --set environment.name=openenv --set {folder} --set {recipe}"


def served_name(spec: ServerSpec, options: ImageOptions) -> str:
    """The name in the image's name: that of the snapshot, or of the folder of the server."""
    return spec.source.folder.name if spec.source is not None else served_snapshot(spec, options).name


def served_snapshot(spec: ServerSpec, options: ImageOptions) -> Snapshot:
    """Return the snapshot of a spec that names a module and a snapshot.

    Raises:
        ConfigError: The spec names something else: images contain modules of finqa and a snapshot, or the folder of a
            server.
    """
    if not spec.module or spec.snapshot is None:
        raise ConfigError(
            f"{options.title} serve a snapshot, or the folder of an environment; they cannot start {spec.server}.",
            remedy="--sandbox docker" if spec.image else "--set environment.options.module=FOLDER, or --sandbox local",
        )
    return spec.snapshot


def content_digest(snapshot: str, options: ImageOptions, command: Sequence[str] = _WAITING) -> str:
    """Hex sha256 over the digest of a snapshot and everything else that is in an image or follows from it.

    `command` is the entry point of the image.
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
    """Snapshot and digest (12 hex digits) of an image's name; None if the image is not one of finqa's."""
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
    if spec.source.dockerfile is not None:
        return ("sh", "-c", read_dockerfile(spec.source.dockerfile, spec.source.folder).command)
    where = ("--app-dir", SERVER_FOLDER, "--host", "0.0.0.0", "--port", str(spec.port), "--log-level", "warning")
    return ("python", "-m", "uvicorn", spec.source.app, *where)


def requirements() -> bytes:
    """Exact versions of everything that the server needs."""
    return files("finqa_plugins.sandboxes._images").joinpath(REQUIREMENTS).read_bytes()


def _image_command(spec: ServerSpec, options: ImageOptions) -> tuple[str, ...]:
    return server_command(spec) if options.serves else _WAITING


def _dockerfile(base: str, wheel: str, command: Sequence[str]) -> str:
    """The Dockerfile, with dependencies before the code, so that new code only rebuilds the last layers."""
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
