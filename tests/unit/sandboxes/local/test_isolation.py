"""Whether code can be isolated here: what a sandbox holds, and what is said where there can be none."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.isolation import needs_isolation

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult, ExecutionSpec
from finqa_plugins.sandboxes.local import isolation
from finqa_plugins.sandboxes.local.bubblewrap import Isolation, sandbox_command
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.control_groups import find_control_groups
from finqa_plugins.sandboxes.local.isolation import find_isolation
from finqa_plugins.sandboxes.local.local_doctor import checks
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

ROOMY = ExecutionLimits(cpu_s=10.0, wall_s=30.0)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found out about this machine is found out again, before and after."""
    find_isolation.cache_clear()
    yield
    find_isolation.cache_clear()


def provider(home: Path, *, isolated: bool = True) -> LocalSandboxProvider:
    return LocalSandboxProvider(LocalSandboxConfig(dangerously_run_unisolated=not isolated), SandboxContext(home=home))


async def execute(home: Path, program: str, limits: ExecutionLimits = ROOMY) -> ExecutionResult:
    local = provider(home)
    try:
        sandbox = await local.start(ExecutionSpec(), {"finqa.run": "r"})
        return await sandbox.execute(ExecutionRequest(argv=(PYTHON, "-I", "-c", program), limits=limits))
    finally:
        await local.close()


def fake_bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, program: str = "/bin/sh") -> None:
    path = folder / "bwrap"
    path.write_text(f"#!{program}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    for parent in path.parents:  # the user that bubblewrap runs as must get there
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IROTH | stat.S_IXOTH)
    found = isolation.shutil.which

    def which(name: str, path: str | None = None) -> str | None:
        return str(folder / "bwrap") if name == "bwrap" else found(name, path=path)

    monkeypatch.setattr(isolation.shutil, "which", which)


def without_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = isolation.shutil.which
    monkeypatch.setattr(
        isolation.shutil, "which", lambda name, path=None: None if name == "bwrap" else found(name, path=path)
    )


async def test_what_is_in_a_sandbox(tmp_path: Path) -> None:
    needs_isolation()
    look = """
import json, os, socket, sys
status = dict(line.strip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "root": sorted(os.listdir("/")), "etc": sorted(os.listdir("/etc")), "home": os.environ["HOME"],
    "ids": [os.getuid(), os.geteuid(), os.getgid()], "groups": os.getgroups(), "name": socket.gethostname(),
    "capabilities": [status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")],
    "privileges": status["NoNewPrivs"],
    "networks": [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "usr": [*os.listdir("/usr"), *os.listdir("/usr/share" if os.path.exists("/usr/share") else "/tmp")],
    "packages": [name for path in sys.path if path.endswith("-packages") for name in os.listdir(path)],
}))
"""
    result = await execute(tmp_path, look)
    seen = json.loads(result.stdout)
    assert set(seen["root"]) <= {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr"}
    assert set(seen["etc"]) <= {"alternatives", "ld.so.cache", "localtime"}
    assert (seen["home"], seen["ids"], seen["name"]) == ("/tmp", [1000, 1000, 1000], "sandbox")
    assert not set(seen["usr"]) & {"src", "include", "games"} and seen["packages"] == []  # no project, no solutions
    assert seen["descriptors"] == [0, 1, 2]  # no channel of finqa
    assert set(seen["groups"]) <= {1000, 65534}
    assert set(seen["capabilities"]) == {"0" * 16}
    assert (seen["privileges"], seen["networks"], seen["processes"]) == ("1", ["lo"], 2)


async def test_the_processes_of_a_sandbox_share_its_memory(tmp_path: Path) -> None:
    needs_isolation()
    if find_control_groups() is None:
        pytest.skip("no control group can be created")
    greedy = """
import os, sys, time
for _ in range(6):
    if os.fork() == 0:
        data = bytearray(100 * 2**20)
        data[::4096] = b"1" * len(data[::4096])
        time.sleep(60)
print(sum(os.WIFSIGNALED(os.wait()[1]) for _ in range(3)))
"""
    limits = ExecutionLimits(cpu_s=10.0, wall_s=30.0, memory_bytes=160 * 2**20, disk_bytes=2**20)
    assert (await execute(tmp_path, greedy, limits)).stdout == b"3\n"


async def test_code_cannot_have_bubblewrap_killed_in_its_place(tmp_path: Path) -> None:
    """What the kernel keeps for it, such as files without content, is of no process, so its size shows nothing."""
    needs_isolation()
    if find_control_groups() is None:
        pytest.skip("no control group can be created")
    hoard = """
import os
try:
    open("/proc/self/oom_score_adj", "w").write("0")
except OSError as error:
    print(error.errno, flush=True)
for _ in range(7):
    if os.fork() == 0:
        break
folder = f"{os.getpid()}"
os.mkdir(folder)
os.chdir(folder)
for number in range(10**7):
    os.close(os.open("x" * 240 + str(number), os.O_CREAT | os.O_WRONLY))
"""
    limits = ExecutionLimits(cpu_s=10.0, wall_s=30.0, memory_bytes=64 * 2**20, disk_bytes=2**20)
    found = await execute(tmp_path, hoard, limits)
    assert (found.ending, found.stdout) == (Ending.KILLED, b"30\n")


def test_of_a_python_elsewhere_a_sandbox_has_the_library_and_no_packages(tmp_path: Path) -> None:
    for name in ("bin", "lib/python3.12/site-packages/finqa_plugins", "envs/other/lib/python3.12/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    hidden = isolation._packages(str(tmp_path))
    assert [name for name in hidden if name.startswith(str(tmp_path))] == [f"{tmp_path}/lib/python3.12/site-packages"]
    sandbox = Isolation(
        bwrap="b", prlimit="p", setpriv="s", as_nobody=False, python="", library=str(tmp_path), hidden=hidden
    )
    command = sandbox_command(sandbox, ExecutionRequest(argv=(PYTHON,)), status_fd=3, filter_fd=None)
    bound = [command[place + 1] for place, flag in enumerate(command) if flag.startswith("--ro-bind")]
    emptied = [command[place + 1] for place, flag in enumerate(command) if flag == "--tmpfs"]
    assert {f"{tmp_path}/bin", f"{tmp_path}/lib"} < set(bound) and not {"/", "/usr", str(tmp_path)} & set(bound)
    assert set(hidden) < set(emptied)


@pytest.mark.usefixtures("forgotten")
async def test_without_bubblewrap_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_bwrap(monkeypatch)
    with pytest.raises(ConfigError, match="bwrap of bubblewrap is not installed") as caught:
        await execute(tmp_path, "print(1)")
    assert "apt-get install bubblewrap" in caught.value.remedy
    assert "--dangerously-run-unisolated" in caught.value.remedy
    assert not (tmp_path / "local").exists()
    (found,) = checks({})
    assert (found.name, found.status, found.detail) == ("isolation", "fail", caught.value.message)


@pytest.mark.usefixtures("forgotten")
async def test_a_machine_that_makes_no_namespaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bwrap(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1", monkeypatch)
    with pytest.raises(ConfigError, match="No permissions to create new namespace"):
        await execute(tmp_path, "print(1)")


@pytest.mark.usefixtures("forgotten")
async def test_a_sandbox_that_is_none_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bwrap that runs its command right here: as our user, with our networks."""
    here = """
import os, subprocess, sys
told = int(sys.argv[sys.argv.index("--json-status-fd") + 1])
os.write(told, b'{"child-pid": 1}\\n')
code = subprocess.call(sys.argv[sys.argv.index("--") + 1 :])
os.write(told, b'{"exit-code": %d}\\n' % code)
"""
    fake_bwrap(tmp_path, here, monkeypatch, program="/usr/bin/env python3")
    with pytest.raises(ConfigError, match="its user is"):
        await execute(tmp_path, "print(1)")


@pytest.mark.usefixtures("forgotten")
async def test_the_flag_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_bwrap(monkeypatch)
    local = provider(tmp_path, isolated=False)
    sandbox = await local.start(ExecutionSpec(), {"finqa.run": "r"})
    result = await sandbox.execute(ExecutionRequest(argv=(PYTHON, "-I", "-c", "import os; print(os.getuid())")))
    await local.close()
    assert int(result.stdout) == (65534 if os.geteuid() == 0 else os.geteuid())
    assert "WITHOUT ISOLATION" in "".join(capsys.readouterr())
    (found,) = checks({"dangerously_run_unisolated": True})
    assert (found.status, "WITHOUT isolation" in found.detail) == ("warn", True)


@pytest.mark.usefixtures("forgotten")
def test_a_python_of_ones_own(tmp_path: Path) -> None:
    needs_isolation()
    with pytest.raises(ConfigError, match="no Python"):
        find_isolation(str(tmp_path / "nowhere"))
    assert find_isolation(os.path.realpath(find_isolation().python)).python == os.path.realpath(find_isolation().python)


def test_doctor_says_what_sandboxes_are_like() -> None:
    needs_isolation()
    (found,) = checks({})
    assert found.status in ("ok", "warn")
    assert find_isolation().python in found.detail
    assert not checks({"no such option": 1})
