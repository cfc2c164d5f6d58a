"""Options of the `docker` sandbox provider, and whether a program runs containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.masking import without_secrets
from finqa_cli.types import Check

PROGRAMS = ("docker", "podman")
READY_TIMEOUT_S = 5.0
INSTALL_REMEDY = "sudo apt-get install podman, or https://docs.docker.com/engine/install"
_PROGRAMS_OWN = re.compile(r"(DOCKER|BUILDX|BUILDKIT|CONTAINERS?|REGISTRY)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
"""Variables that docker and podman read themselves, such as the key of a registry."""
_OURS = re.compile(r"--(name|publish|publish-all|detach|rm|pull|restart|network|label-file)(=.*)?|-[dpP].*")
"""Arguments of `run` that finqa sets itself. Other values could lose containers, or open them to the network."""


class DockerSandboxConfig(BaseModel):
    """Options for starting, limiting and ending containers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = Field(
        default="", description="Program that runs containers (default: docker if its daemon is running, else podman)"
    )
    containers: int = Field(
        default_factory=lambda: 4 * (os.cpu_count() or 1),
        ge=1,
        description="Maximum number of containers at once (default: four per core)",
    )
    memory_mib: int = Field(default=1024, ge=0, description="Memory of a container in MiB, without swap; 0: no limit")
    cpus: float = Field(default=1.0, ge=0, description="CPUs of a container; 0: no limit")
    pids: int = Field(default=512, ge=0, description="Processes and threads of a container; 0: no limit")
    network: str = Field(default="", description="Network of the containers (default: the program's own)")
    arguments: tuple[str, ...] = Field(
        default=(), description="Additional arguments of docker run, such as --gpus=all or --ulimit=nofile=4096:4096"
    )
    pull: Literal["missing", "never"] = Field(
        default="missing", description="Pull an image that is not on this machine from its registry"
    )
    base_image: str | None = Field(
        default=None, description="Image with Python to build upon (default: python:3.12-slim, pinned)"
    )
    pull_timeout_s: float = Field(default=1800.0, gt=0, description="Timeout of pulling an image, in seconds")
    build_timeout_s: float = Field(default=1800.0, gt=0, description="Timeout of building an image, in seconds")
    create_timeout_s: float = Field(default=120.0, gt=0, description="Timeout of creating a container, in seconds")
    start_timeout_s: float = Field(default=120.0, gt=0, description="Timeout until its server is healthy, in seconds")
    delete_timeout_s: float = Field(
        default=60.0, gt=0, description="Timeout until a removed container has ended, in seconds"
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.network in ("host", "none"):
            raise ValueError(f"network {self.network}: a container's port could not be published on 127.0.0.1")
        if taken := [argument for argument in self.arguments if _OURS.fullmatch(argument)]:
            raise ValueError(f"{taken[0].partition('=')[0]} is set by finqa for every container")
        return self


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether a program runs containers; see `Component.readiness`. `finqa doctor` reports why none does."""
    chosen = settings["sandbox"]
    command = chosen["options"].get("command") if chosen["name"] == "docker" else None
    installed = [path for program in ([command] if command else PROGRAMS) if (path := shutil.which(program))]
    if any(map(_answers, installed)):
        return []
    if installed:
        names = " and ".join(Path(path).name for path in installed)
        detail = f"{names}: installed, but cannot list containers"
        return [Check(name="docker", status="fail", detail=detail, remedy="finqa doctor --sandbox docker")]
    detail = f"needs {command or 'docker or podman'}"
    return [Check(name="docker", status="fail", detail=detail, remedy=INSTALL_REMEDY)]


def program_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that docker or podman gets: no secrets but those that are meant for it."""
    return without_secrets(environment, meant=_PROGRAMS_OWN)


def _answers(program: str) -> bool:
    """Return whether a program lists its containers, for which docker needs its daemon."""
    try:
        found = subprocess.run(
            [program, "ps", "--quiet"],
            capture_output=True,
            timeout=READY_TIMEOUT_S,
            check=False,
            env=program_variables(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0
