"""What code can do under the supervisor, which runs here as it does in a sandbox."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution import enclosure
from finqa_plugins.sandboxes._execution.calls import command, result

ROOMY = ExecutionLimits(cpu_s=10.0, wall_s=30.0, disk_bytes=8 * 2**20)
HANG_S = 60.0
UNPRIVILEGED = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give code a user id of its own")


def executed(program: str, stdin: str = "", limits: ExecutionLimits = ROOMY) -> ExecutionResult:
    request = ExecutionRequest(argv=(PYTHON, "-I", "-c", textwrap.dedent(program)), stdin=stdin.encode(), limits=limits)
    argv, sent = command(request)
    done = subprocess.run(
        [sys.executable, *argv[1:]],
        input=sent,
        capture_output=True,
        timeout=HANG_S,
        env={**os.environ, "CANARY": "of-the-host"},
        check=False,
    )
    assert not done.stderr
    return result(done.stdout, done.returncode, request)


ESCAPES = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
port, secret = sys.stdin.read().split()
ways = {
    "network": lambda: socket.create_connection(("127.0.0.1", int(port))),
    "socket": lambda: socket.socket(socket.AF_UNIX),
    "system files": lambda: open("/usr/lib/planted", "w"),
    "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0) and 1 / 0,
    "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) and 1 / 0,
    "user namespace": lambda: libc.unshare(0x10000000) and 1 / 0,
    "queue that stays": lambda: libc.msgget(4711, 0o1600) < 0 and 1 / 0,
    "memory of the supervisor": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
    "output of the supervisor": lambda: open(f"/proc/{os.getppid()}/fd/1", "w"),
    "environment of the supervisor": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "root": lambda: os.setuid(0),
    "environment of process 1": lambda: open("/proc/1/environ").read(),
    "end of the supervisor": lambda: os.kill(os.getppid(), 0),
    "file of the host": lambda: open(secret).read(),
}
for name, way in ways.items():
    try:
        way()
    except (OSError, ZeroDivisionError):
        continue
    print(name)
print("the end")
"""
OF_ITS_OWN_USER = b"environment of process 1\nend of the supervisor\nfile of the host\n"
"""What only another user id shuts."""


def test_escapes(tmp_path: Path) -> None:
    secret = tmp_path / "answers"
    secret.write_text("42")
    secret.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = executed(ESCAPES, f"{server.getsockname()[1]} {secret}")
    assert (found.ending, found.exit_code, found.stderr) == (Ending.EXITED, 0, b"")
    escaped = found.stdout.removesuffix(b"the end\n")
    assert escaped == b"" or (os.geteuid() != 0 and set(escaped.split(b"\n")) <= set(OF_ITS_OWN_USER.split(b"\n")))


def test_code_sees_nothing_of_our_environment() -> None:
    found = executed("import os; print(sorted(os.environ), os.getuid() == 0)")
    assert found.stdout == b"['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR'] False\n"


def test_bombs_are_over_and_gone() -> None:
    mark = uuid.uuid4().hex
    bomb = f"""
        import os
        mark = {mark!r}
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
            except OSError:
                pass
    """
    found = executed(bomb, limits=ExecutionLimits(cpu_s=10.0, wall_s=0.5))
    assert found.ending is Ending.TIME
    assert not marked(mark)


def test_a_full_disk_is_the_codes_own_doing_and_gone() -> None:
    many = "import itertools\nfor n in itertools.count(): open(str(n), 'wb').write(bytes(2**20))"
    found = executed(many, limits=ExecutionLimits(cpu_s=10.0, wall_s=20.0, disk_bytes=8 * 2**20))
    assert (found.ending, found.exit_code) == (Ending.KILLED, None)
    one = executed("import time\ntry: open('one', 'wb').write(bytes(64 * 2**20))\nfinally: time.sleep(0.3)")
    assert (one.ending, one.stdout) == (Ending.EXITED, b"") and b"File too large" in one.stderr


HIDDEN = {
    "files that are removed and open": "import os\nfiles = []\nwhile True:\n"
    "    files.append(open('x', 'wb', buffering=0))\n    os.unlink('x')\n    files[-1].write(bytes(2**20))",
    "files deeper than any path": "import itertools, os\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
    "for n in itertools.count(): open(str(n), 'wb').write(bytes(2**20))",
}


@pytest.mark.parametrize("program", HIDDEN.values(), ids=HIDDEN)
def test_no_file_is_hidden_from_the_limit_on_disk(program: str) -> None:
    limits = ExecutionLimits(cpu_s=10.0, wall_s=20.0, disk_bytes=4 * 2**20)
    slow = program.replace("bytes(2**20))", "bytes(2**20)); __import__('time').sleep(0.02)")  # 50 MiB a second at most
    assert executed(slow, limits=limits).ending is Ending.KILLED


@as_root
def test_code_cannot_stop_who_acts_as_its_user() -> None:
    """Otherwise it could make the supervisor wait forever, and a sandbox that hangs is an infrastructure fault.

    Nor can another supervisor when it ends all that its own user has: our look at the disk would fail, which counts as
    a disk that is full.
    """
    uid = enclosure.own_uid()

    def someone_else_may_signal(guard: int) -> None:
        stranger = os.fork()
        if stranger == 0:
            os.setresuid(uid, uid, uid)
            try:
                os.kill(guard, 0)
            except PermissionError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(stranger, 0)[1] == 0
        another_supervisor = enclosure.own_uid()
        assert not enclosure.as_user(another_supervisor, lambda: os.kill(guard, signal.SIGKILL))

    def wait() -> None:
        os.write(wakes, os.getpid().to_bytes(4, "big"))
        time.sleep(3600)

    waits, wakes = os.pipe()
    child = os.fork()
    if child == 0:
        enclosure.as_user(uid, wait)
        os._exit(0)
    guard = int.from_bytes(os.read(waits, 4), "big")
    try:
        someone_else_may_signal(guard)
    finally:
        os.kill(guard, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(waits)
        os.close(wakes)


def test_whatever_code_writes_anywhere_is_gone() -> None:
    name = f"left-{uuid.uuid4().hex}"
    places = ["/tmp", "/dev/shm", "/var/tmp"] if os.geteuid() == 0 else []
    program = f"""
        import os
        for place in {places!r}:
            os.makedirs(f"{{place}}/{name}/inner", 0o300)
            open(f"{{place}}/{name}.file", "w").close()
        print(os.getcwd(), flush=True)
        for _ in range(300):
            os.mkdir("deeper" * 10)
            os.chdir("deeper" * 10)
        os.symlink("/etc", "link")
        os.chmod(".", 0)
    """
    found = executed(program)
    assert found.ending in (Ending.EXITED, Ending.KILLED)  # the latter when it is seen before its end
    assert found.stderr == b""
    assert not Path(found.stdout.decode().strip()).exists()
    assert not [path for place in places for path in Path(place).glob(f"{name}*")]
    assert Path("/etc/passwd").exists()


@pytest.mark.slow
def test_processor_time_counts_however_long_it_takes() -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    found = executed(stubborn, limits=ExecutionLimits(cpu_s=1.0, wall_s=30.0))
    assert (found.ending, found.exit_code) == (Ending.TIME, None)


def test_a_command_that_is_none() -> None:
    request = ExecutionRequest(argv=("no-such-command",))
    argv, sent = command(request)
    done = subprocess.run([sys.executable, *argv[1:]], input=sent, capture_output=True, timeout=HANG_S, check=False)
    found = result(done.stdout, done.returncode, request)
    assert (found.ending, found.exit_code) == (Ending.EXITED, 127) and b"no-such-command" in found.stderr


@as_root
def test_a_supervisor_that_is_killed_leaves_nothing_either() -> None:
    mark = uuid.uuid4().hex
    program = f"import os, time\nif os.fork() == 0: os.setsid()\nopen('{mark}', 'w').close()\ntime.sleep(3600)"
    argv, sent = command(ExecutionRequest(argv=(PYTHON, "-I", "-c", program), limits=ROOMY))
    supervisor = subprocess.Popen([sys.executable, *argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
    assert supervisor.stdin is not None
    supervisor.stdin.write(sent)
    supervisor.stdin.close()
    until(lambda: len(marked(mark)) == 2)
    folder = (marked(mark)[0] / "cwd").readlink()
    assert folder.is_relative_to("/tmp")
    os.killpg(supervisor.pid, signal.SIGKILL)
    supervisor.wait(HANG_S)
    until(lambda: not marked(mark) and not folder.exists())


@as_root
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no Python that every user can run")
def test_where_the_sandbox_has_no_root_the_limits_hold_all_the_same() -> None:
    mark = uuid.uuid4().hex
    bomb = f"import os\nmark = '{mark}'\nwhile True:\n try: os.fork() or os.setsid()\n except OSError: pass"
    limits = ExecutionLimits(cpu_s=10.0, wall_s=0.5)
    request = ExecutionRequest(argv=(PYTHON, "-I", "-c", bomb), limits=limits)
    argv, sent = command(request)
    done = subprocess.run(
        ["/usr/bin/python3", *argv[1:]],
        input=sent,
        capture_output=True,
        timeout=HANG_S,
        user=UNPRIVILEGED,
        group=UNPRIVILEGED,
        extra_groups=[],
        check=False,
    )
    assert result(done.stdout, done.returncode, request).ending is Ending.TIME
    assert not marked(mark)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def marked(mark: str) -> list[Path]:
    """Processes with this in their command line."""
    return [path for path in Path("/proc").glob("[0-9]*") if mark in _command_line(path)]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
