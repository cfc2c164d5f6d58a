"""The filter of system calls: run by a small machine for classic BPF, and by the kernel on real programs."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.sandboxes._execution.seccomp import (
    ALLOW,
    CLONE3,
    FAIL,
    KILL_PROCESS,
    MACHINES,
    NEWEST,
    X32,
    filter_program,
)

NEW_USER, THREAD = 0x10000000, 0x003D0F00
LONGEST = 4096
"""Steps that the kernel takes, see BPF_MAXINSNS."""

DANGEROUS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165, "umount2": 166,
        "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "bpf": 321, "perf_event_open": 298,
        "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "kexec_load": 246,
        "kexec_file_load": 320, "name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "reboot": 169, "swapon": 167, "swapoff": 168,
        "acct": 163, "quotactl": 179, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
        "clock_adjtime": 305, "syslog": 103, "vhangup": 153, "kcmp": 312, "memfd_create": 319, "shmget": 29,
        "msgget": 68, "semget": 64, "mq_open": 240, "fanotify_init": 300, "iopl": 172, "ioperm": 173,
        "modify_ldt": 154, "io_setup": 206, "uselib": 134, "lookup_dcookie": 212, "remap_file_pages": 216,
        "io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "pidfd_getfd": 438, "mount_setattr": 442,
        "memfd_secret": 447,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "unshare": 97, "setns": 268, "bpf": 280, "perf_event_open": 241, "add_key": 217, "keyctl": 219,
        "userfaultfd": 282, "open_by_handle_at": 265, "personality": 92, "finit_module": 273, "reboot": 142,
        "memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180, "io_uring_setup": 425,
        "open_tree": 428, "pidfd_getfd": 438,
    },
}  # fmt: skip


def verdict(machine: str, number: int, argument: int = 0, *, audit: int | None = None, sockets: bool = True) -> int:
    """What the kernel would do with a call."""
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine, sockets=sockets)))
    known = MACHINES[machine].audit if audit is None else audit
    data = struct.pack("=IIQQ", number, known, 0, argument)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
        at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_are_told_apart(machine: str) -> None:
    known = MACHINES[machine]
    refused = {name for name, number in DANGEROUS[machine].items() if verdict(machine, number) != FAIL | errno.EPERM}
    assert not refused
    assert verdict(machine, CLONE3) == verdict(machine, NEWEST + 1) == FAIL | errno.ENOSYS
    assert verdict(machine, known.clone, THREAD) == ALLOW
    assert verdict(machine, known.clone, NEW_USER | THREAD) == FAIL | errno.EPERM
    assert [verdict(machine, known.socket, family) for family in (1, 2, 10)] == [ALLOW] * 3
    assert [verdict(machine, known.socket, family) for family in (16, 17, 40)] == [FAIL | errno.EAFNOSUPPORT] * 3
    assert [verdict(machine, known.socket, family, sockets=False) for family in (1, 2)] == [FAIL | errno.EPERM] * 2
    assert verdict(machine, 0, audit=0x40000003) == KILL_PROCESS
    assert len(filter_program(machine)) <= 8 * LONGEST


@given(st.sampled_from(sorted(MACHINES)), st.integers(0, 600) | st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_only_what_is_listed_is_allowed(machine: str, number: int, argument: int) -> None:
    known = MACHINES[machine]
    if number in (known.clone, known.socket, CLONE3):
        return
    if machine == "x86_64" and number >= X32:
        expected = KILL_PROCESS
    elif number in known.allowed.values():
        expected = ALLOW
    else:
        expected = FAIL | (errno.ENOSYS if number > NEWEST else errno.EPERM)
    assert verdict(machine, number, argument) == verdict(machine, number, argument, sockets=False) == expected


def test_no_name_has_two_numbers_and_unknown_processors_have_no_filter() -> None:
    for known in MACHINES.values():
        assert len(set(known.allowed.values())) == len(known.allowed)
    assert filter_program("riscv64") == b""


class Filter(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put this process and its children under the filter, as bubblewrap does."""
    libc = ctypes.CDLL(None, use_errno=True)
    block = Filter(len(program) // 8, program)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(block), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter was refused")


SOLUTIONS: dict[str, str] = {
    "threads": """
import threading as t
a=[]
x=[t.Thread(target=a.append, args=(i,)) for i in range(8)]
[y.start() for y in x]
[y.join() for y in x]
assert len(a) == 8
""",
    "processes": """
import multiprocessing as m
p=m.get_context('fork').Pool(2)
assert p.map(abs, [-1, 2]) == [1, 2]
p.close()
p.join()
""",
    "spawned": """
import multiprocessing as m
p=m.get_context('spawn').Process(target=print)
p.start()
p.join()
assert p.exitcode == 0
""",
    "commands": """
import subprocess as s
assert s.run(['sort', '-r'], input=b'a', capture_output=True).stdout[:1] == b'a'
""",
    "executor": """
import concurrent.futures as f
assert list(f.ThreadPoolExecutor(4).map(abs, [-1])) == [1]
""",
    "asyncio": """
import asyncio
async def a():
 p = await asyncio.create_subprocess_exec('true')
 assert await p.wait() == 0
 await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(9)))
asyncio.run(a())
""",
    "sockets": """
import socket as s
a, b = s.socketpair()
a.sendall(b'x')
assert b.recv(1) == b'x'
c = s.create_server(('127.0.0.1', 0))
d = s.create_connection(c.getsockname())
c.accept()
""",
    "files": """
import os, shutil, tempfile as t
d = t.mkdtemp()
f = os.path.join(d, 'a')
open(f, 'w').write('x')
shutil.copy(f, f + 'b')
os.rename(f, f + 'c')
os.symlink('c', f)
os.chmod(f + 'c', 0o600)
os.link(f + 'c', f + 'd')
assert len(list(os.scandir(d))) == 4
os.stat(f + 'c')
os.utime(f + 'c')
os.truncate(f + 'c', 0)
shutil.rmtree(d)
""",
    "memory": """
import mmap, array
m = mmap.mmap(-1, 1 << 20)
m[:4] = b'abcd'
m.flush()
m.resize(1 << 21)
m.close()
x = bytearray(1 << 26)
del x
""",
    "locks": """
import fcntl, tempfile as t
f = t.TemporaryFile()
fcntl.flock(f, fcntl.LOCK_EX)
fcntl.lockf(f, fcntl.LOCK_UN)
""",
    "signals": """
import signal, os, time
g = []
signal.signal(signal.SIGALRM, lambda *a: g.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.1)
assert g
signal.sigtimedwait([signal.SIGUSR1], 0)
""",
    "limits": """
import resource as r
r.setrlimit(r.RLIMIT_NOFILE, (64, 64))
r.getrusage(r.RUSAGE_SELF)
import os
os.nice(1)
os.sched_getaffinity(0)
os.getpriority(0, 0)
""",
    "clocks": """
import time
time.perf_counter()
time.process_time()
time.thread_time()
time.sleep(0.001)
time.clock_gettime(time.CLOCK_BOOTTIME)
""",
    "polls": """
import select, os
r, w = os.pipe()
os.write(w, b'x')
assert select.select([r], [], [], 1)[0]
e = select.epoll()
e.register(r)
assert e.poll(1)
p = select.poll()
p.register(r)
assert p.poll(1)
""",
    "sqlite": """
import sqlite3, tempfile as t, os
f = os.path.join(t.mkdtemp(), 'a')
c = sqlite3.connect(f)
c.execute('pragma journal_mode=wal')
c.execute('create table t(a)')
c.execute('insert into t values(1)')
c.commit()
""",
    "random": """
import random, secrets, uuid, os
secrets.token_bytes(8)
uuid.uuid4()
os.getrandom(4)
random.random()
""",
    "users": """
import os, pwd, grp
pwd.getpwuid(os.getuid())
os.getgroups()
os.getpgid(0)
os.setsid() if os.fork() == 0 else os.wait()
""",
    "numpy": """
import numpy as n
a = n.random.rand(300, 300)
assert (a @ a).shape == (300, 300)
n.linalg.svd(a)
""",
    "scipy": """
import scipy.optimize as o
assert abs(o.brentq(lambda x: x * x - 2, 0, 2) - 2 ** 0.5) < 1e-9
""",
    "archives": """
import zipfile, io, gzip, lzma, bz2
z = zipfile.ZipFile(io.BytesIO(), 'w')
z.writestr('a', 'b')
lzma.compress(b'x')
gzip.compress(b'x')
bz2.compress(b'x')
""",
    "platform": """
import platform, os, sys
platform.uname()
os.sysconf('SC_PAGE_SIZE')
os.cpu_count()
os.getloadavg()
os.statvfs('/')
""",
}
"""What real solutions do; each runs under the filter of this machine, in a process of its own."""

REFUSED: dict[str, str] = {
    "files in memory": "import os; os.memfd_create('a')",
    "vsock": "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "chroot": "import os; os.chroot('/tmp')",
}


def run_under_filter(source: str, **options: Any) -> subprocess.CompletedProcess[str]:
    program = filter_program(**options)
    return subprocess.run(
        [sys.executable, "-c", source],
        preexec_fn=lambda: install(program),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


known_machine = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this processor")


@known_machine
@pytest.mark.parametrize("name", SOLUTIONS)
def test_what_solutions_need_is_allowed_by_the_kernel(name: str) -> None:
    done = run_under_filter(SOLUTIONS[name])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@known_machine
@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_needs_is_refused_by_the_kernel(name: str) -> None:
    done = run_under_filter(REFUSED[name])
    assert done.returncode == 1 and ("PermissionError" in done.stderr or "not supported" in done.stderr), done.stderr


@known_machine
def test_without_sockets_there_is_none_of_any_family() -> None:
    done = run_under_filter("import socket; socket.socket(socket.AF_INET)", sockets=False)
    assert "PermissionError" in done.stderr
