"""The `docker` provider on real containers, where docker or podman runs some here."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.containers import FIXTURES, PYTHON, Containers, working_containers
from structlog.testing import capture_logs

from finqa_cli.app import main
from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import ConfigError, DataError, FinqaError, SandboxError
from finqa_cli.types import ExecutionSpec, ServerSource, ServerSpec
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import remove_command
from finqa_plugins.sandboxes.docker.docker_provider import DockerSandboxProvider
from finqa_plugins.sandboxes.docker.docker_sandbox import DockerSandbox

RUN = {"finqa.run": "unit"}
OWNER = """
import asyncio, json, sys
from pathlib import Path
from finqa_cli.contracts import SandboxContext
from finqa_cli.types import ServerSpec
from finqa_cli.wiring.sandbox_owners import owner_labels
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import remove_command
from finqa_plugins.sandboxes.docker.docker_provider import DockerSandboxProvider

async def main():
    config = DockerSandboxConfig.model_validate(json.loads(sys.argv[1]))
    provider = DockerSandboxProvider(config, SandboxContext(home=Path(sys.argv[3])))
    sandbox = await provider.start(ServerSpec(image=sys.argv[2]), owner_labels(sys.argv[4]))
    print(sandbox.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    with working_containers() as containers:
        yield containers
        assert containers.names() == []


def provider(containers: Containers, home: Path, **options: Any) -> DockerSandboxProvider:
    config = DockerSandboxConfig.model_validate({**containers.options, **options})
    return DockerSandboxProvider(config, SandboxContext(home=home))


def served(containers: Containers, **variables: str) -> ServerSpec:
    return ServerSpec(image=containers.image, environment=variables)


async def test_variables_of_the_server_reach_it_and_ours_do_not(
    containers: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "s3cret")
    monkeypatch.setenv("https_proxy", "http://me:s3cret@127.0.0.1:1")
    docker = provider(containers, tmp_path)
    try:
        sandbox = await docker.start(served(containers, LEVEL="3 = three\n# two lines"), RUN)
        async with httpx.AsyncClient(trust_env=False) as client:
            found = (await client.get(f"{sandbox.url()}/variables")).json()
        assert (found["LEVEL"], found["PORT"], found["HOST"]) == ("3 = three\n# two lines", "8000", "0.0.0.0")
        assert "s3cret" not in json.dumps(found)
        (row,) = json.loads(containers.run("container", "inspect", sandbox.id))
        (place,) = row["NetworkSettings"]["Ports"]["8000/tcp"]
        assert place["HostIp"] == "127.0.0.1" and sandbox.url() == f"http://127.0.0.1:{place['HostPort']}"
        limits = row["HostConfig"]
        assert (limits["Memory"], limits["PidsLimit"]) == (1024 * 2**20, 512)
        assert limits["NanoCpus"] == 10**9
    finally:
        await docker.close()


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("exit", {}, r"exited with code 1 at start\. Its last output:\n(the server begins\n)?the data is damaged"),
        ("memory", {"memory_mib": 64}, r"64 MiB at start\. Its last output:\nthe server begins"),
        ("mute", {"start_timeout_s": 3.0}, r"was not ready in 3 s\. Its last output:\nthe server begins"),
    ],
)
async def test_a_container_that_does_not_serve_is_removed_and_says_why(
    mode: str, options: dict[str, Any], told: str, containers: Containers, tmp_path: Path
) -> None:
    docker = provider(containers, tmp_path, **options)
    try:
        with pytest.raises(SandboxError, match=told) as caught:
            await docker.start(served(containers, MODE=mode), RUN)
        assert ("memory_mib" in caught.value.remedy) == (mode == "memory")
        assert containers.names() == []
    finally:
        await docker.close()


async def test_an_image_that_is_nowhere_is_named_with_what_gets_it(containers: Containers, tmp_path: Path) -> None:
    docker = provider(containers, tmp_path, pull="never")
    name = containers.engine.name
    with pytest.raises(ConfigError, match=r"There is no image 127\.0\.0\.1:1/nothing:1 on this machine") as caught:
        await docker.start(ServerSpec(image="127.0.0.1:1/nothing:1"), RUN)
    assert caught.value.remedy.startswith(f"{name} pull 127.0.0.1:1/nothing:1")
    pulling = provider(containers, tmp_path)
    with pytest.raises(ConfigError, match="and pulling it failed: "):
        await pulling.start(ServerSpec(image="127.0.0.1:1/nothing:1"), RUN)
    await asyncio.gather(docker.close(), pulling.close())


async def test_an_image_without_a_command_that_can_be_started_is_refused(
    containers: Containers, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "empty").touch()
    docker = provider(containers, tmp_path)
    with containers.image_of(folder, 'FROM scratch\nCOPY empty /\nCMD ["/nothing"]\n') as image:
        with pytest.raises(ConfigError, match=f"The image {image} has no command that can be started"):
            await docker.start(ServerSpec(image=image), RUN)
        await docker.close()
        assert containers.names() == []


async def test_what_containers_cannot_be_is_refused_with_what_can(containers: Containers, tmp_path: Path) -> None:
    docker = provider(containers, tmp_path)
    with pytest.raises(ConfigError, match="executes code") as caught:
        await docker.start(ExecutionSpec(), RUN)
    assert "--sandbox local" in caught.value.remedy
    with pytest.raises(ConfigError, match="they cannot start serve it") as caught:
        await docker.start(ServerSpec(command=("serve", "it")), RUN)
    assert "environment.options.module=FOLDER" in caught.value.remedy
    await docker.close()


async def test_a_server_that_dies_is_unhealthy_and_its_end_is_told(containers: Containers, tmp_path: Path) -> None:
    docker = provider(containers, tmp_path)
    try:
        sandbox = await docker.start(served(containers), RUN)
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.HTTPError):
                await client.post(sandbox.url())
        assert not await sandbox.healthy()
        (info,) = await docker.list(RUN)
        assert info.state == "stopped"
        with capture_logs() as told:
            await sandbox.stop()
        assert [entry["log_level"] for entry in told if "exited with code 9" in entry.get("why", "")] == ["warning"]
        assert await docker.list(RUN) == []
    finally:
        await docker.close()


async def test_containers_end_within_seconds(containers: Containers, tmp_path: Path) -> None:
    docker = provider(containers, tmp_path)
    await asyncio.gather(*(docker.start(served(containers), RUN) for _ in range(3)))
    began = time.monotonic()
    await docker.close()
    assert containers.names() == [] and time.monotonic() - began < 20


def test_what_a_killed_process_left_is_listed_and_reaped(
    containers: Containers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, run = json.dumps(containers.options), f"killed-{os.urandom(4).hex()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, options, containers.image, str(tmp_path), run], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        owner.send_signal(signal.SIGKILL)
    assert re.fullmatch(r"finqa-[0-9a-f]{12}", name) and containers.names() == [name]
    here = ["--sandbox=docker", f"--run={run}", "--set", f"sandbox.options.command={containers.engine.program}"]
    assert main(["sandbox", "ls", *here, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["sandboxes"]
    assert listed["id"] == name
    assert main(["sandbox", "reap", *here]) == 0
    assert containers.names() == []


async def test_a_container_of_others_stays(containers: Containers, tmp_path: Path) -> None:
    docker, other = provider(containers, tmp_path), "finqa-" + os.urandom(6).hex()
    containers.run("run", "--detach", f"--name={other}", *containers.arguments, "--env=MODE=mute", containers.image)
    try:
        assert other not in {info.id for info in await docker.list({})}
        await docker.reap(other)
        assert json.loads(containers.run("container", "inspect", other))[0]["State"]["Status"] == "running"
    finally:
        containers.run(*remove_command(other, podman=containers.engine.podman))
        await docker.close()


async def test_a_folder_is_built_by_its_own_dockerfile_listed_and_deleted(
    containers: Containers, tmp_path: Path
) -> None:
    folder = tmp_path / "maze_env"
    (folder / "server").mkdir(parents=True)
    shutil.copy(FIXTURES / "container_server.py", folder / "server")
    (folder / ".env").write_text("KEY=s3cret")
    steps = "FROM scratch\nARG ENV_NAME\nLABEL is=$ENV_NAME\nCOPY . /app/\n"
    dockerfile = f'{steps}CMD ["{PYTHON}", "/app/server/container_server.py"]\n'
    (folder / "server" / "Dockerfile").write_text(dockerfile)
    source = ServerSource(folder=folder, app="maze_env.server.app:app", dockerfile=folder / "server" / "Dockerfile")
    spec = ServerSpec(command=("python", "-m", "uvicorn"), source=source)
    docker = provider(containers, tmp_path)
    lines: list[str] = []
    try:
        with pytest.raises(DataError, match="There is no image of 'maze_env'") as caught:
            await docker.start(spec, RUN)
        assert caught.value.remedy.startswith("finqa snapshot build --sandbox docker --set environment.name=openenv")
        image, new = await docker.build_image(spec, lines.append)
        assert new and lines and re.fullmatch(r"finqa:maze_env-[0-9a-f]{12}", image.name)
        assert not (await docker.build_image(spec, lines.append))[1]
        assert image in await docker.images() and image.created > time.time() - 600
        sandbox = await docker.start(spec, RUN)
        assert isinstance(sandbox, DockerSandbox) and await sandbox.healthy()
        await sandbox.stop()
        (row,) = json.loads(containers.run("image", "inspect", image.name))
        assert row["Config"]["Labels"]["is"] == "maze"
    finally:
        assert list(await docker.delete_images("maze_env")) == [image.name]
        await docker.close()


async def test_a_build_that_fails_ends_with_its_log(containers: Containers, tmp_path: Path) -> None:
    folder = tmp_path / "maze_env"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY nothing.txt /\n")
    source = ServerSource(folder=folder, app="maze_env.server.app:app", dockerfile=folder / "Dockerfile")
    spec = ServerSpec(command=("x",), source=source)
    docker = provider(containers, tmp_path)
    with pytest.raises(FinqaError, match=r"Building image finqa:maze_env-\w+ failed[^$]*nothing\.txt") as caught:
        await docker.build_image(spec, lambda _: None)
    assert caught.value.remedy.startswith("finqa snapshot build --sandbox docker")
    await docker.close()
