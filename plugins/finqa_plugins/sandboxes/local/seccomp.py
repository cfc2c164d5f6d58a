"""A filter of system calls as the kernel's classic BPF program, for what code has no use for and kernels had faults in.

Format: struct sock_filter of linux/filter.h over struct seccomp_data of linux/seccomp.h; numbers are those of
asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ALLOW, FAIL, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000

NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""

SOCKET_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6, which the namespace of the network holds; AF_VSOCK and others it does not."""

X32 = 0x40000000
"""From this number on calls are those of another ABI of x86_64."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    clone: int
    socket: int
    refused: Mapping[str, int]


COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165, "umount2": 166, "pivot_root": 155,
    "chroot": 161, "unshare": 272, "setns": 308, "bpf": 321, "perf_event_open": 298, "add_key": 248,
    "request_key": 249, "keyctl": 250, "userfaultfd": 323, "kexec_load": 246, "kexec_file_load": 320,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305, "syslog": 103, "vhangup": 153,
    "kcmp": 312, "memfd_create": 319, "shmget": 29, "msgget": 68, "semget": 64, "fanotify_init": 300, "iopl": 172,
    "ioperm": 173, "modify_ldt": 154,
}  # fmt: skip
AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40, "umount2": 39, "pivot_root": 41,
    "chroot": 51, "unshare": 97, "setns": 268, "bpf": 280, "perf_event_open": 241, "add_key": 217, "request_key": 218,
    "keyctl": 219, "userfaultfd": 282, "kexec_load": 104, "kexec_file_load": 294, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "personality": 92, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60, "settimeofday": 170,
    "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "syslog": 116, "vhangup": 58, "kcmp": 272,
    "memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190, "fanotify_init": 262,
}  # fmt: skip
CLONE3 = 435

MACHINES = {
    "x86_64": _Machine(0xC000003E, 56, 41, {**COMMON, **X86_64}),
    "aarch64": _Machine(0xC00000B7, 220, 198, {**COMMON, **AARCH64}),
}


def filter_program(machine: str = platform.machine()) -> bytes:
    """The program; empty for processors whose numbers are not known here.

    Refused calls fail with EPERM, so that a program hears of it; clone3 with ENOSYS, so that libc falls back on clone,
    whose flags a filter can see. Calls of another ABI end the process.
    """
    known = MACHINES.get(machine)
    if known is None:
        return b""
    program = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(IF_EQUAL, known.audit, 1, 0),
        _step(RETURN, KILL_PROCESS),
        _step(LOAD, NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [_step(IF_AT_LEAST, X32, 0, 1), _step(RETURN, KILL_PROCESS)]
    program += [_step(IF_EQUAL, CLONE3, 0, 1), _step(RETURN, FAIL | errno.ENOSYS)]
    for number in known.refused.values():
        program += [_step(IF_EQUAL, number, 0, 1), _step(RETURN, FAIL | errno.EPERM)]
    families = [_step(IF_EQUAL, family, len(SOCKET_FAMILIES) - at, 0) for at, family in enumerate(SOCKET_FAMILIES)]
    program += [
        _step(IF_EQUAL, known.clone, 0, 4),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(IF_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _step(RETURN, FAIL | errno.EPERM),
        _step(RETURN, ALLOW),
        _step(IF_EQUAL, known.socket, 0, len(families) + 2),
        _step(LOAD, FIRST_ARGUMENT_AT),
        *families,
        _step(RETURN, FAIL | errno.EAFNOSUPPORT),
        _step(RETURN, ALLOW),
    ]
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
