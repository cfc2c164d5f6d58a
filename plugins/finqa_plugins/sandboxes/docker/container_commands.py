"""Command lines of docker and podman, and what their replies mean. Pure; both programs take the same arguments.

Where they differ, functions have an argument `podman`. No command line contains values of variables, because every user
of the machine can read it: `--env NAME` takes the value from the environment of the program.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes._serving.server_health import HOST
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig, program_variables

LABELS_LABEL, PROVIDER_LABEL, IMAGE_LABEL = "finqa.labels", "finqa.provider", "finqa.image"
"""On a container: the names of the labels with which it was started, and the provider object that started it. On an
image: its digest.
"""

KILLED = 137
"""Exit code of a container whose first process was killed: 128 + SIGKILL."""

_NAME = re.compile(r"finqa-[0-9a-f]{12}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_PROGRAM = re.compile(r"PATH|HOME|TMPDIR|USER|LD_.*|XDG_.*|DOCKER_.*|BUILD.*|CONTAINER.*|PODMAN_.*|SSH_.*|GO.*")
"""Variables that docker and podman read themselves."""
_PROXIES = re.compile(r"(https?|ftp|no|all)_proxy", re.I)
_STATES = {
    **dict.fromkeys(("running",), "started"),
    **dict.fromkeys(("created", "configured", "initialized", "restarting"), "starting"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container, as docker or podman describes it.

    Attributes:
        id: The engine's id, 64 hex digits.
        name: The name that finqa gave it.
        state: `started`, `starting` or `stopped`.
        labels: The labels with which finqa started it; empty for a container that is not ours.
        created: Unix time in seconds.
        exit_code: Exit code of its first process; 0 while it runs.
        out_of_memory: Whether the kernel killed one of its processes at the memory limit.
        reason: What the engine reports if the first process could not be started.
        ports: Pairs of a port inside and its port on this machine.
    """

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
    created: float
    exit_code: int = 0
    out_of_memory: bool = False
    reason: str = ""
    ports: Mapping[int, int] = field(default_factory=dict)


def new_name() -> str:
    """A unique name for a container."""
    return f"finqa-{secrets.token_hex(6)}"


def is_name(text: str) -> bool:
    """Whether the text is a name that `new_name` can give."""
    return _NAME.fullmatch(text) is not None


def run_command(
    spec: ServerSpec, image: str, name: str, labels: Mapping[str, str], owner: str, config: DockerSandboxConfig
) -> tuple[str, ...]:
    """Arguments that start a container and print its id. Its port is reachable only from this machine's loopback.

    Raises:
        ConfigError: A variable cannot be passed on; see `container_variables`.
    """
    marks = {**labels, LABELS_LABEL: json.dumps(sorted(labels)), PROVIDER_LABEL: owner}
    limits: list[str] = []
    if config.memory_mib:
        limits += [f"--memory={config.memory_mib}m", f"--memory-swap={config.memory_mib}m"]
    if config.cpus:
        limits.append(f"--cpus={config.cpus:g}")
    limits.append(f"--pids-limit={config.pids or -1}")
    return (
        "run",
        "--detach",
        "--pull=never",
        f"--name={name}",
        f"--publish={HOST}::{spec.port}",
        "--security-opt=no-new-privileges",
        *(f"--label={key}={value}" for key, value in marks.items()),
        *(f"--env={variable}" for variable in container_variables(spec)),
        *limits,
        *([f"--network={config.network}"] if config.network else []),
        *config.arguments,
        image,
    )


def container_variables(spec: ServerSpec) -> Mapping[str, str]:
    """The variables of a server inside its container.

    Raises:
        ConfigError: A name is invalid, or the variable would change the program that starts containers.
    """
    for name in spec.environment:
        if not _VARIABLE.fullmatch(name) or _OF_THE_PROGRAM.fullmatch(name):
            raise ConfigError(
                f"The variable {name!r} cannot be passed to a container.",
                remedy=f"set it in the image (ENV {name}=... in its Dockerfile)",
            )
    # The port is published only on this machine's loopback, so a server of finqa needs no token.
    return {"HOST": "0.0.0.0", "FINQA_REQUIRE_TOKEN": "0", **spec.environment, "PORT": str(spec.port)}


def run_variables(environment: Mapping[str, str], spec: ServerSpec) -> Mapping[str, str]:
    """The environment for `run_command`: that of the program, with the values of the server's variables.

    Proxy variables are left out: podman would pass them on, and their addresses may contain passwords.
    """
    own = {name: value for name, value in program_variables(environment).items() if not _PROXIES.fullmatch(name)}
    return {**own, **container_variables(spec)}


def listing_command(labels: Mapping[str, str], *, running: bool = False) -> tuple[str, ...]:
    """Arguments that print the ids of finqa's containers with all these labels, one on each line."""
    wanted = [f"--filter=label={LABELS_LABEL}", *(f"--filter=label={key}={value}" for key, value in labels.items())]
    return ("ps", "--quiet", "--no-trunc", *(["--filter=status=running"] if running else ["--all"]), *wanted)


def remove_command(container: str, *, podman: bool) -> tuple[str, ...]:
    """Arguments that end and remove a container at once, with its anonymous volumes."""
    return ("rm", "--force", "--volumes", *(["--time=0"] if podman else []), container)


def build_arguments(tag: str, digest: str, dockerfile: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Arguments that build an image; the caller appends the build's folder."""
    passed = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    return ("build", f"--tag={tag}", f"--label={IMAGE_LABEL}={digest}", f"--file={dockerfile}", *passed)


def parse_containers(text: str) -> Sequence[Container]:
    """The containers in a reply of `container inspect`, which leaves out those that vanished meanwhile."""
    return [_container(row) for row in json.loads(text or "[]")]


def ending_of(container: Container, memory_mib: int) -> str:
    """How a container ended, as the end of a sentence: `exited with code 3`."""
    if container.reason:
        return f"could not be run: {container.reason}"
    limit = f"its limit of {memory_mib} MiB" if memory_mib else "all there was"
    if container.out_of_memory:
        return f"ran out of memory at {limit}"
    if container.exit_code == KILLED:
        return f"was killed (exit code {KILLED}), as happens to a container that uses more memory than {limit}"
    return f"exited with code {container.exit_code}"


def _container(row: Mapping[str, Any]) -> Container:
    state, config = row["State"], row.get("Config") or {}
    labels = config.get("Labels") or {}
    return Container(
        id=row["Id"],
        name=row["Name"].removeprefix("/"),
        state=_STATES.get(state["Status"], "stopped"),
        labels={key: labels[key] for key in json.loads(labels.get(LABELS_LABEL) or "[]") if key in labels},
        created=datetime.fromisoformat(row["Created"]).timestamp(),
        exit_code=state.get("ExitCode") or 0,
        out_of_memory=bool(state.get("OOMKilled")),
        reason=state.get("Error") or "",
        ports=dict(_ports((row.get("NetworkSettings") or {}).get("Ports") or {})),
    )


def _ports(published: Mapping[str, Sequence[Mapping[str, str]] | None]) -> Sequence[tuple[int, int]]:
    return [
        (int(inside.partition("/")[0]), int(places[0]["HostPort"]))
        for inside, places in published.items()
        if places and inside.endswith("/tcp")
    ]
