"""Reads the Dockerfile of an environment's folder: the files that it copies, and how the server starts.

Language: https://docs.docker.com/reference/dockerfile. Daytona's SDK sends the sources of COPY. It does
not expand variables, and sends nothing for ADD and for mounts of a build.
"""

from __future__ import annotations

import glob
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import ConfigError

BASE_ARGUMENT = "BASE_IMAGE"
"""Name of the build argument with which OpenEnv's Dockerfiles take another base image."""

PACKAGES = "--set environment.options.recipe=packages, which installs the folder's own project"
_SHELL = ("sh", "-c")
_FLAG = re.compile(r"--[\w-]+(?:=\S+)?\s+")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_REMOTE = ("http://", "https://", "git@")
_NO_MOUNTS = ("bind", "secret", "ssh")
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDockerfile:
    """The parts of a Dockerfile that a build needs.

    Attributes:
        text: The Dockerfile to send, with an entry point that keeps a sandbox running without a server.
        files: Path in the build's folder -> file on this machine.
        command: Command line that starts the server in a sandbox.
    """

    text: str
    files: Mapping[str, Path]
    command: str


def read_dockerfile(path: Path, folder: Path, base_image: str | None = None) -> OwnDockerfile:
    """Read the Dockerfile of an environment.

    Sources of COPY are looked for in the folder. If one begins with `envs/NAME/`, the build folder has the layout of
    OpenEnv's repository, in which the environment's folder has that path.

    Args:
        path: The Dockerfile.
        folder: The environment's folder.
        base_image: Value of the build argument BASE_IMAGE; None: the Dockerfile's own.

    Raises:
        ConfigError: Daytona cannot build it; the message names the instruction.
    """
    text = path.read_text(encoding="utf-8")
    lines = list(_instructions(text))
    if base_image:
        text = with_base(path, text, base_image)
    copied = [source for word, rest, line in lines if word == "COPY" for source in _sources(path, rest, line)]
    for word, rest, line in lines:
        if word == "ADD" and not all(each.startswith(_REMOTE) for each in _words(rest)[:-1]):
            raise _refused(path, line, "Daytona's SDK uploads the sources of COPY, but not of ADD")
        for kind in _NO_MOUNTS:
            if word == "RUN" and re.search(rf"--mount=\S*type={kind}\b(?!\S*from=)", rest):
                raise _refused(path, line, f"Daytona's SDK uploads nothing for a mount of type {kind}")
    files = folder_files(folder)
    inside = f"envs/{folder.name}"
    if any(posixpath.normpath(source).split("/")[:2] == ["envs", folder.name] for source, _ in copied):
        files = folder_files(folder, f"{inside}/")
    for source, line in copied:
        if not _matches(source, files):
            raise _refused(path, line, f"{folder} has no {source}")
    ending = 'ENTRYPOINT ["sleep", "infinity"]\nCMD []\n'
    return OwnDockerfile(
        text=f"{text.rstrip()}\n\n# the server is started by a command in the sandbox\n{ending}",
        files=files,
        command=_start_command(path, lines),
    )


def _instructions(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield keyword, arguments and the whole line of each instruction, continued lines joined."""
    held = ""
    for raw in text.splitlines():
        if raw.lstrip().startswith("#") or not raw.strip():
            continue
        if raw.rstrip().endswith("\\"):
            held += raw.rstrip()[:-1].strip() + " "
            continue
        line, held = (held + raw.strip()).strip(), ""
        word, _, rest = line.partition(" ")
        yield word.upper(), rest.strip(), line


def _sources(path: Path, rest: str, line: str) -> Iterator[tuple[str, str]]:
    """Yield each source that a COPY takes from the build's folder, with its line; not sources of other stages."""
    if "--from=" in rest:
        return
    for source in _words(rest)[:-1]:
        if "$" in source:
            raise _refused(path, line, f"Daytona's SDK does not expand the variable in {source}")
        if posixpath.isabs(source) or posixpath.normpath(source).split("/")[0] == "..":
            raise _refused(path, line, f"{source} is outside of the build's folder")
        yield source, line


def _words(rest: str) -> list[str]:
    while (flag := _FLAG.match(rest)) is not None:
        rest = rest[flag.end() :]
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


def folder_files(folder: Path, prefix: str = "") -> dict[str, Path]:
    """Return the folder's files by their path in the build's folder.

    Hidden files, which may contain keys, and files that programs generate are excluded.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part in _LEFT_OUT or part.startswith(".") for part in inside.parts):
            found[prefix + inside.as_posix()] = path
    return found


def _matches(source: str, files: Mapping[str, Path]) -> bool:
    wanted = posixpath.normpath(source)
    pattern = re.compile(_pattern(wanted))
    return wanted == "." or any(pattern.match(name) for name in files)


def _pattern(source: str) -> str:
    """Return a regular expression for the files of a source of COPY: a file, a folder or a pattern."""
    parts = [
        re.escape(part) if not glob.has_magic(part) else re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for part in source.split("/")
    ]
    return "/".join(parts) + r"(?:/|\Z)"


def with_base(path: Path, text: str, image: str) -> str:
    """Return the Dockerfile with another base image.

    Raises:
        ConfigError: The Dockerfile has no build argument for it.
    """
    changed, count = re.subn(rf"(?m)^ARG\s+{BASE_ARGUMENT}\b.*$", f"ARG {BASE_ARGUMENT}={image}", text)
    if not count:
        raise ConfigError(
            f"sandbox.options.base_image has no effect on {path}: it has no build argument {BASE_ARGUMENT}.",
            remedy="leave base_image out, or --set environment.options.recipe=packages",
        )
    return changed


def _start_command(path: Path, lines: list[tuple[str, str, str]]) -> str:
    """Return the command line of the last stage, in its working directory.

    Raises:
        ConfigError: The stage has no command, or its working directory contains a variable.
    """
    stages = [number for number, (word, _, _) in enumerate(lines) if word == "FROM"]
    if not stages:
        raise ConfigError(f"{path} has no FROM.", remedy=f"correct {path}, or {PACKAGES}")
    folder, entry, command = "", "", ""
    for word, rest, line in lines[stages[-1] :]:
        if word == "WORKDIR":
            if _VARIABLE.search(rest):
                raise _refused(path, line, "the working directory depends on a variable")
            folder = posixpath.normpath(posixpath.join(folder or "/", rest.strip("\"'")))
        elif word == "ENTRYPOINT":
            entry, command = _command_line(rest), ""
        elif word == "CMD":
            command = _command_line(rest)
    started = " ".join(filter(None, (entry, command)))
    if not started:
        raise ConfigError(
            f"{path} cannot be served on Daytona: its last stage has neither CMD nor ENTRYPOINT.", remedy=PACKAGES
        )
    return f"cd {shlex.quote(folder)} && exec {started}" if folder else f"exec {started}"


def _command_line(rest: str) -> str:
    """Return a command line of the exec form or the shell form of CMD and ENTRYPOINT."""
    words = _words(rest) if rest.startswith("[") else [*_SHELL, rest]
    return shlex.join(words)


def _refused(path: Path, line: str, why: str) -> ConfigError:
    shown = line if len(line) <= 120 else f"{line[:117]}..."
    return ConfigError(f"{path} cannot be built on Daytona: {shown}: {why}.", remedy=PACKAGES)
