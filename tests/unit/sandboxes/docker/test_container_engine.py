"""Which program runs containers, and how it is called; the programs here are scripts that reply as the real ones do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError, SandboxError, ServiceUnavailableError
from finqa_cli.processes import start_time
from finqa_plugins.sandboxes.docker.config import readiness
from finqa_plugins.sandboxes.docker.container_engine import Engine, Reply, explained, find_engine, missing_image

DOCKER = """#!/bin/sh
if [ "$1" = --version ]; then echo "Docker version 28.2.2, build e6534b4"; exit 0; fi
"""
SILENT = DOCKER + 'echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock." >&2; exit 1\n'
PODMAN = """#!/bin/sh
if [ "$1" = --version ]; then echo "podman version 4.3.1"; exit 0; fi
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


async def test_docker_comes_first_where_its_daemon_answers(programs: Path) -> None:
    install(programs, "podman", PODMAN)
    docker = install(programs, "docker", DOCKER)
    engine = await find_engine("")
    assert (engine.program, engine.podman, engine.name, engine.version) == (docker, False, "docker", "28.2.2")


async def test_a_program_gets_no_secret_but_its_own(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, "docker", f'#!/bin/sh\nexport -p >> {tmp_path}/variables\necho "Docker version 28.2.2"\n')
    for name, value in {
        "OPENAI_API_KEY": "s3cret",
        "DATABASE_URL": "postgres://me:s3cret@host/db",
        "DOCKER_AUTH_CONFIG": "of-a-registry",
        "https_proxy": "http://me:of-a-proxy@host",
    }.items():
        monkeypatch.setenv(name, value)
    engine = await find_engine("")
    await engine.call("pull", "image")
    assert readiness({"sandbox": {"name": "docker", "options": {}}}) == []
    seen = (tmp_path / "variables").read_text()
    assert seen.count("of-a-registry") == seen.count("of-a-proxy") == 4
    assert "s3cret" not in seen


async def test_podman_is_taken_where_dockers_daemon_is_away(programs: Path) -> None:
    install(programs, "docker", SILENT)
    podman = install(programs, "podman", PODMAN)
    engine = await find_engine("")
    assert (engine.program, engine.podman, engine.version) == (podman, True, "4.3.1")


async def test_a_podman_that_is_called_docker_is_known_as_podman(programs: Path) -> None:
    install(programs, "docker", PODMAN)
    assert (await find_engine("")).podman


async def test_a_daemon_that_is_away_is_named_with_what_starts_it(programs: Path) -> None:
    install(programs, "docker", SILENT)
    with pytest.raises(ServiceUnavailableError, match="docker does not answer: Cannot connect") as caught:
        await find_engine("")
    assert caught.value.remedy == "sudo apt-get install podman"
    for name in ("dockerd", "systemctl"):
        install(programs, name, DOCKER)
        with pytest.raises(ServiceUnavailableError) as caught:
            await find_engine("")
        start = {"dockerd": "sudo dockerd", "systemctl": "sudo systemctl start docker"}[name]
        assert caught.value.remedy == f"{start}, or sudo apt-get install podman"


async def test_without_a_program_the_packages_are_named(programs: Path) -> None:
    with pytest.raises(MissingDependencyError, match="docker or podman, and neither") as caught:
        await find_engine("")
    assert "apt-get install podman" in caught.value.remedy
    with pytest.raises(ConfigError, match="There is no program nerdctl") as wrong:
        await find_engine("nerdctl")
    assert "apt-get install podman" in wrong.value.remedy
    install(programs, "podman", PODMAN)
    with pytest.raises(ConfigError) as wrong:
        await find_engine("nerdctl")
    assert wrong.value.remedy == "--set sandbox.options.command=podman"


async def test_a_program_that_is_chosen_is_not_replaced_by_another(programs: Path) -> None:
    silent = install(programs, "docker", SILENT)
    install(programs, "podman", PODMAN)
    with pytest.raises(ServiceUnavailableError) as caught:
        await find_engine(silent)
    assert caught.value.remedy == "--set sandbox.options.command=podman"


def engine(folder: Path, script: str) -> Engine:
    return Engine(install(folder, "engine", f"#!/bin/sh\n{script}\n"), podman=False, version="1")


async def test_replies_have_code_and_both_outputs_or_one(tmp_path: Path) -> None:
    speaker = engine(tmp_path, 'echo "$X $1"; echo "warning: slow" >&2; echo "Error: no such thing" >&2; exit 3')
    reply = await speaker.call("a b", variables={"X": "value"})
    assert (reply.code, reply.out, reply.reason) == (3, "value a b\n", "Error: no such thing")
    merged = await speaker.call("a", merged=True, variables={"X": "v"})
    assert merged.out == "v a\nwarning: slow\nError: no such thing\n"
    lines: list[str] = []
    followed = await speaker.call("a", on_line=lines.append, variables={"X": "v"})
    assert lines == ["v a", "warning: slow", "Error: no such thing"] and followed.code == 3


async def test_what_takes_too_long_is_ended_and_named(tmp_path: Path) -> None:
    slow = engine(tmp_path, f"echo $$ > {tmp_path}/pid; exec /bin/sleep 60")
    with pytest.raises(SandboxError, match=r"engine ps took longer than 0.5 s") as caught:
        await slow.call("ps", timeout_s=0.5)
    assert caught.value.remedy == "finqa doctor --sandbox docker"
    assert start_time(int((tmp_path / "pid").read_text())) is None


async def test_a_call_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    slow = engine(tmp_path, "echo $$; exec /bin/sleep 60")
    call = asyncio.create_task(slow.call("build", on_line=said.put_nowait))
    pid = int(await asyncio.wait_for(said.get(), 30))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert start_time(pid) is None


async def test_a_program_that_cannot_be_started_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_text("#!/nowhere\n")
    path.chmod(0o755)
    with pytest.raises(SandboxError, match="cannot be started"):
        await Engine(str(path), podman=False, version="1").call("ps")


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (
            Reply(125, "", "docker: Error response from daemon: No such image: a:1"),
            ConfigError,
            "There is no image a:1",
        ),
        (Reply(125, "", "Error: a:1: image not known"), ConfigError, "There is no image a:1"),
        (Reply(127, "", "Error: runc: exec: no such file"), ConfigError, "no command that can be started"),
        (Reply(125, "", "Error: Range of CPUs is from 0.01 to 2.00"), SandboxError, "Range of CPUs"),
    ],
)
def test_why_no_container_started(reply: Reply, kind: type[FinqaError], told: str, tmp_path: Path) -> None:
    error = explained(reply, engine(tmp_path, ""), "a:1", "starting a container")
    assert isinstance(error, kind) and told in error.message and error.remedy


def test_a_missing_image_names_what_gets_it(tmp_path: Path) -> None:
    error = missing_image(engine(tmp_path, ""), "a:1", "no such host")
    assert error.message == "There is no image a:1 on this machine, and pulling it failed: no such host"
    assert error.remedy == "docker pull a:1, or docker build --tag a:1 FOLDER"


async def test_a_container_that_ends_while_it_is_inspected_is_inspected_again(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    ending = f'echo x >> {tried}; echo "Error: read /proc/7/cgroup: no such process" >&2; exit 125'
    script = f'[ -s {tried} ] && echo x >> {tried} && echo "[]" && exit 0; {ending}'
    assert not await engine(tmp_path, script).inspect("a")
    assert tried.read_text() == "x\nx\n"
    tried.write_text("")
    with pytest.raises(SandboxError, match="no such process"):
        await engine(tmp_path, ending).inspect("a")
    assert tried.read_text().count("x") == 3
