"""Which system calls code in a remote box is denied, as the filter that its kernel takes."""

from __future__ import annotations

import struct

_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)
"""io_uring, mounts by descriptor, pidfd_getfd."""
_X86 = (41, 101, 310, 311, 165, 166, 155, 161, 272, 308, 321, 298, 248, 249, 250, 323, 246, 320, 175, 313, 176, 304)
"""socket, ptrace, process_vm_*, mount, umount2, pivot_root, chroot, unshare, setns, bpf, perf_event_open, keys,
userfaultfd, kexec, modules, open_by_handle_at; below personality, queues that
outlive their processes, memfd_create."""
_ARM = (198, 117, 270, 271, 40, 39, 41, 51, 97, 268, 280, 241, 217, 218, 219, 282, 104, 294, 105, 273, 106, 265)
MACHINES = {  # architecture of the audit headers, clone, denied calls
    "x86_64": (0xC000003E, 56, (*_X86, 135, 29, 68, 64, 240, 319, *_EVERYWHERE)),
    "aarch64": (0xC00000B7, 220, (*_ARM, 92, 194, 186, 190, 180, 279, *_EVERYWHERE)),
}
_CLONE3, _X32, _NEW_NAMESPACES = 435, 0x4000_0000, 0x7E02_0000


def system_calls(machine: str) -> bytes:
    """A seccomp filter in classic BPF: denied calls get EPERM, and clone3 ENOSYS, so that libc falls back to clone.

    Empty where the machine's numbers are not known.
    """
    if machine not in MACHINES:
        return b""
    architecture, clone, denied = MACHINES[machine]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    lines: list[tuple[int, str, str, int]] = [  # test, where to go when true, when false, operand
        (load, "", "", 4),
        (equal, "", "deny", architecture),
        (load, "", "", 0),
        (at_least, "deny", "", _X32),
        *((equal, "deny", "", number) for number in denied),
        (equal, "absent", "", _CLONE3),
        (equal, "", "allow", clone),
        (load, "", "", 16),
        (any_bit, "deny", "", _NEW_NAMESPACES),
    ]
    places = {"allow": len(lines), "deny": len(lines) + 1, "absent": len(lines) + 2}
    program = [
        (test, *(places[name] - at - 1 if name else 0 for name in (true, false)), operand)
        for at, (test, true, false, operand) in enumerate(lines)
    ]
    program += [(answer, 0, 0, 0x7FFF_0000), (answer, 0, 0, 0x0005_0001), (answer, 0, 0, 0x0005_0026)]
    return b"".join(struct.pack("HBBI", *line) for line in program)
