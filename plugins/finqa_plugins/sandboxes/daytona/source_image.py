"""The image of a server of another maker: built from its own Dockerfile, or from its packages and its folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from finqa_cli.types import ServerSource, ServerSpec
from finqa_plugins.sandboxes.daytona.own_dockerfile import LEFT_OUT, read_dockerfile

FOLDER = "/opt/finqa"
SERVER_FOLDER = f"{FOLDER}/server"
"""Where the folder of a server of another maker lies."""

REQUIREMENTS = "requirements.txt"
PIP = "python -m pip install --no-cache-dir --disable-pip-version-check"


def source_context(source: ServerSource, base: str, own_base: str | None) -> tuple[str, dict[str, bytes | Path]]:
    """Return the Dockerfile of a server, and its build's folder: path -> content, or file on this machine.

    Args:
        source: The server.
        base: Base image of images made of packages.
        own_base: Base image that takes the place of the one in the server's own Dockerfile; None: that one.

    Raises:
        ConfigError: Its own Dockerfile cannot be carried out; see `read_dockerfile`.
    """
    if source.dockerfile is not None:
        own = read_dockerfile(source.dockerfile, source.folder, own_base)
        return own.text, dict(own.files)
    files: dict[str, bytes | Path] = {REQUIREMENTS: "".join(f"{one}\n" for one in source.requirements).encode()}
    package = source.app.partition(".")[0]
    for path in sorted(source.folder.rglob("*")):
        inside = path.relative_to(source.folder)
        if path.is_file() and not any(part in LEFT_OUT or part.startswith(".") for part in inside.parts):
            files[f"server/{package}/{inside.as_posix()}"] = path
    steps = [f"RUN {PIP} --requirement {REQUIREMENTS}", "COPY server ./server"]
    if source.project:  # its wheel, as pip builds it: for imports by its package's name, and its metadata
        steps.append(f"RUN {PIP} --no-deps ./server/{package}")
    return dockerfile_lines(base, steps), files


def server_command(spec: ServerSpec) -> str:
    """Return the command line that starts the server of a spec in its sandbox."""
    source = spec.source
    if source is None:
        return f"python -m {spec.module}"
    if source.dockerfile is not None:
        return read_dockerfile(source.dockerfile, source.folder).command
    where = ["--app-dir", SERVER_FOLDER, "--host", "0.0.0.0", "--port", str(spec.port), "--log-level", "warning"]
    return shlex.join(["python", "-m", "uvicorn", source.app, *where])


def dockerfile_lines(base: str, steps: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Return a Dockerfile of ours: the steps as root in `FOLDER`, then a user of its own and no server."""
    return "\n".join(
        (
            f"FROM {base}",
            "RUN useradd --create-home finqa",
            f"WORKDIR {FOLDER}",
            f"COPY {REQUIREMENTS} ./",
            *steps,
            "USER finqa",
            "WORKDIR /home/finqa",
            *(f"ENV {name}={value}" for name, value in (variables or {}).items()),
            "ENV HOST=0.0.0.0",
            "ENV PYTHONUNBUFFERED=1",
            'ENTRYPOINT ["sleep", "infinity"]',
            "",
        )
    )
