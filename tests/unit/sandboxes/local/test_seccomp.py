"""The filter of system calls, run by a small machine for classic BPF."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.sandboxes.local.seccomp import ALLOW, CLONE3, FAIL, KILL_PROCESS, MACHINES, X32, filter_program

NEW_USER, THREAD = 0x10000000, 0x003D0F00
LONGEST = 4096
"""Steps that the kernel takes, see BPF_MAXINSNS."""


def verdict(machine: str, number: int, argument: int = 0, *, audit: int | None = None) -> int:
    """What the kernel would do with a call."""
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    known = MACHINES[machine].audit if audit is None else audit
    data = struct.pack("=iIQQ", number, known, 0, argument)
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
    assert all(verdict(machine, number) == FAIL | errno.EPERM for number in known.refused.values())
    assert verdict(machine, CLONE3) == FAIL | errno.ENOSYS
    assert verdict(machine, known.clone, THREAD) == ALLOW
    assert verdict(machine, known.clone, NEW_USER | THREAD) == FAIL | errno.EPERM
    assert [verdict(machine, known.socket, family) for family in (1, 2, 10)] == [ALLOW] * 3
    assert [verdict(machine, known.socket, family) for family in (16, 17, 40)] == [FAIL | errno.EAFNOSUPPORT] * 3
    assert verdict(machine, 0, audit=0x40000003) == KILL_PROCESS
    assert len(filter_program(machine)) <= 8 * LONGEST


@given(st.sampled_from(sorted(MACHINES)), st.integers(0, 2**31 - 1), st.integers(0, 2**64 - 1))
def test_every_other_call_is_allowed(machine: str, number: int, argument: int) -> None:
    known = MACHINES[machine]
    special = {*known.refused.values(), known.clone, known.socket, CLONE3}
    if number not in special:
        other_abi = machine == "x86_64" and number >= X32
        assert verdict(machine, number, argument) == (KILL_PROCESS if other_abi else ALLOW)


def test_unknown_processors_have_no_filter() -> None:
    assert filter_program("riscv64") == b""
