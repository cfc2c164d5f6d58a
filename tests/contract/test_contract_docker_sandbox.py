"""The `docker` provider on real containers, where docker or podman runs some here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.containers import Containers, working_containers

from finqa_cli.contracts import SandboxContext
from finqa_cli.types import SandboxSpec, ServerSpec
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.docker_provider import DockerSandboxProvider
from finqa_testing.contract import sandbox_suite
from finqa_testing.contract.execution_checks import ProviderFactory

Check = Callable[[ProviderFactory, SandboxSpec], Awaitable[None]]
WORKING: list[Check] = [
    sandbox_suite.check_life_of_a_sandbox,
    sandbox_suite.check_sandboxes_are_told_apart,
    sandbox_suite.check_close_ends_everything,
    sandbox_suite.check_sandboxes_are_reaped_from_elsewhere,
    sandbox_suite.check_a_cancelled_start_leaves_nothing,
]


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    with working_containers() as containers:
        yield containers


@pytest.fixture
def make(containers: Containers, tmp_path: Path) -> ProviderFactory:
    config = DockerSandboxConfig.model_validate(containers.options)
    return lambda: DockerSandboxProvider(config, SandboxContext(home=tmp_path))


@pytest.mark.parametrize("check", WORKING)
async def test_docker(check: Check, make: ProviderFactory, containers: Containers) -> None:
    await check(make, ServerSpec(image=containers.image))


async def test_docker_failed_start(make: ProviderFactory, containers: Containers) -> None:
    broken = ServerSpec(image=containers.image, environment={"MODE": "exit"})
    await sandbox_suite.check_a_failed_start_leaves_nothing(make, broken)


async def test_docker_cancelled_later(make: ProviderFactory, containers: Containers) -> None:
    mute = replace(ServerSpec(image=containers.image), environment={"MODE": "mute"})
    await sandbox_suite.check_a_cancelled_start_leaves_nothing(make, mute)
