"""Fourteen ways out of a sandbox, each tried by a program that prints ESCAPED when it gets anywhere.

The same programs also run as bare processes: an attack that does not work there either would show nothing.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass

from benchmarks.code_execution.exposed_host import Host
from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult

MIB = 2**20
LIMITS = ExecutionLimits(
    cpu_s=1.0, wall_s=3.0, memory_bytes=512 * MIB, processes=16, disk_bytes=16 * MIB, output_bytes=MIB
)
LONGEST_S = 5.0

HELPERS = """
import ctypes, glob, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
CANARY = "HOST_CANARY"[::-1]
def escaped(how):
    print("ESCAPED", how, flush=True)
def tried(action, how):
    try:
        if action():
            escaped(how)
    except Exception as error:
        print("held", how, type(error).__name__, flush=True)
def content(path):
    return open(path, errors="replace").read()
"""


@dataclass(frozen=True, slots=True)
class Escape:
    """One way out.

    Attributes:
        program: Given the host's facts with `str.replace`.
        endings: How a sandbox that holds may end it; empty for however it ends, as long as it says nothing.
    """

    name: str
    program: str
    endings: tuple[Ending, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an attempt."""

    name: str
    held: bool
    seconds: float
    result: ExecutionResult


ESCAPES = (
    Escape(
        "network",
        """
        def reach(family, address, kind=socket.SOCK_STREAM):
            with socket.socket(family, kind) as out:
                out.settimeout(0.5)
                out.connect(address)
            return True
        tried(lambda: reach(socket.AF_INET, ("HOST_ADDRESS", HOST_PORT)), "own address")
        tried(lambda: reach(socket.AF_INET, ("192.0.2.1", 9), socket.SOCK_DGRAM), "a route out; sends nothing")
        tried(lambda: socket.socket(40, socket.SOCK_STREAM), "vsock")
        tried(lambda: set(os.listdir("/sys/class/net")) - {"lo"}, "interfaces")
        """,
    ),
    Escape(
        "loopback",
        """
        def reach(family, address):
            with socket.socket(family, socket.SOCK_STREAM) as out:
                out.settimeout(0.5)
                out.connect(address)
            return True
        tried(lambda: reach(socket.AF_INET, ("127.0.0.1", HOST_PORT)), "tcp")
        tried(lambda: reach(socket.AF_UNIX, "\\0HOST_NAME"), "abstract socket")
        """,
    ),
    Escape(
        "answers file",
        """
        for path in HOST_FILES:
            for root in ("", "/proc/1/root", "/proc/self/root", "/.."):
                tried(lambda: CANARY in content(root + path), root + path)
        """,
    ),
    Escape(
        "host environment",
        'tried(lambda: CANARY in repr(dict(os.environ)) + content("/proc/self/environ"), "own")',
    ),
    Escape(
        "environment of other processes",
        """
        for path in glob.glob("/proc/[0-9]*/environ"):
            tried(lambda: CANARY in content(path), path)
        """,
    ),
    Escape(
        "fork bomb",
        """
        forks = 0
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                if os.fork() == 0:
                    time.sleep(2)
                    os._exit(0)
                forks += 1
                if forks > 16:
                    escaped(f"{forks} processes")
            except OSError:
                time.sleep(0.05)
        """,
    ),
    Escape(
        "2 GB of memory",
        """
        import mmap
        size = 2 * 2**30
        tried(lambda: bytearray(size), "heap")
        tried(lambda: mmap.mmap(-1, size), "map")
        def in_file(fd):
            os.set_inheritable(fd, True)
            return sum(os.write(fd, bytes(2**20)) for _ in range(32)) >= 2**25
        tried(lambda: in_file(os.memfd_create("m")), "file in memory")
        tried(lambda: libc.shmget(0, 2**26, 0o1600) >= 0, "shared memory")
        """,
    ),
    Escape(
        "disk",
        """
        written, files = 0, []
        folders = (".", "/tmp", "/var/tmp", "/dev/shm", "/run", "/", "/dev", os.path.expanduser("~"))
        for number in range(64):
            path = f"{folders[number % 8]}/fill-{os.getpid()}-{number}"
            try:
                files.append(open(path, "wb", buffering=0))
                os.unlink(path)  # the space is taken until the file is closed, and nothing is left outside a sandbox
                for _ in range(16):
                    written += files[-1].write(bytes(2**20))
            except OSError:
                pass
            if written > 20 * 2**20:
                escaped(f"{written >> 20} MiB")
                break
        """,
    ),
    Escape(
        "spin",
        """
        import signal
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
        """,
        (Ending.TIME, Ending.KILLED),
    ),
    Escape(
        "write to /usr",
        """
        for folder in ("/usr", "/usr/bin", "/usr/lib", "/bin", "/etc", "/", "/opt", "/var", "/home", "/sys"):
            tried(lambda: open(folder + "/written", "w"), folder)
        tried(lambda: open("/proc/sys/kernel/hostname", "w").write("x"), "hostname")
        tried(lambda: os.getuid() == 0 or os.geteuid() == 0, "root")
        tried(lambda: content("/etc/shadow"), "shadow")
        """,
    ),
    Escape(
        "processes of the host",
        """
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            tried(lambda: CANARY in content(path), path)
        """,
    ),
    Escape(
        "ptrace",
        """
        child = os.fork()
        if child == 0:
            time.sleep(2)
            os._exit(0)
        tried(lambda: libc.ptrace(16, child, 0, 0) == 0, "attach")
        tried(lambda: libc.ptrace(0, 0, 0, 0) == 0, "trace me")
        local, remote = (ctypes.c_char * 8)(), (ctypes.c_char * 8)()
        class Vector(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        into, out = Vector(ctypes.addressof(local), 8), Vector(ctypes.addressof(remote), 8)
        tried(lambda: libc.process_vm_readv(child, ctypes.byref(into), 1, ctypes.byref(out), 1, 0) == 8, "read")
        os.kill(child, 9)
        """,
    ),
    Escape(
        "mount",
        """
        tried(lambda: libc.unshare(0x10000000 | 0x00020000) == 0, "user namespace")
        tried(lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0, "tmpfs")
        tried(lambda: libc.mount(b"/", b"/tmp", None, 4096, None) == 0, "bind")
        tried(lambda: libc.umount2(b"/proc", 2) == 0, "umount")
        tried(lambda: os.chroot("/tmp") is None, "chroot")
        tried(lambda: libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) == 0, "setns")
        """,
    ),
    Escape("flood of output", 'while True: os.write(1, b"x" * 65536); os.write(2, b"y" * 65536)', (Ending.OUTPUT,)),
)


async def attempt(sandbox: ExecutingSandbox, escape: Escape, host: Host, limits: ExecutionLimits = LIMITS) -> Outcome:
    """Tries one."""
    program = HELPERS + textwrap.dedent(escape.program)
    facts = {
        "HOST_CANARY": host.canary[::-1],  # reversed, for the program may not hold it itself
        "HOST_ADDRESS": host.address,
        "HOST_PORT": str(host.port),
        "HOST_NAME": host.name,
        "HOST_FILES": repr(host.files),
    }
    for name, value in facts.items():
        program = program.replace(name, value)
    began = time.monotonic()
    result = await sandbox.execute(ExecutionRequest(argv=(PYTHON, "-I", "-c", program), limits=limits))
    silent = b"ESCAPED" not in result.stdout and host.canary.encode() not in result.stdout + result.stderr
    ended = not escape.endings or result.ending in escape.endings
    short = max(len(result.stdout), len(result.stderr)) <= limits.output_bytes
    return Outcome(name=escape.name, held=silent and ended and short, seconds=time.monotonic() - began, result=result)
