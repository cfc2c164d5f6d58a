"""The filter, run by a small interpreter of classic BPF (linux/filter.h) instead of a kernel."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.sandboxes._execution.calls import MACHINES, system_calls

ALLOW, EPERM, ENOSYS = 0x7FFF_0000, 0x0005_0001, 0x0005_0026
NEW_USER, THREAD = 0x1000_0000, 0x003D_0F00


PROGRAMS = {machine: list(struct.iter_unpack("HBBI", system_calls(machine))) for machine in MACHINES}


def verdict(machine: str, architecture: int, number: int, argument: int = 0) -> int:
    program = PROGRAMS[machine]
    data = struct.pack("IIQQ", number, architecture, 0, argument & 0xFFFF_FFFF_FFFF_FFFF)
    assert data[16:20] == struct.pack("I", argument)
    place = held = 0
    while True:
        code, true, false, operand = program[place]
        place += 1
        if code == 0x20:
            (held,) = struct.unpack_from("I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[code]
            place += true if holds else false


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_what_is_denied_and_what_is_not(machine: str) -> None:
    architecture, clone, denied = MACHINES[machine]
    assert {verdict(machine, architecture, number) for number in denied} == {EPERM}
    assert verdict(machine, architecture, clone, NEW_USER) == EPERM
    assert verdict(machine, architecture, clone, THREAD) == ALLOW
    assert verdict(machine, architecture, 435, THREAD) == ENOSYS
    assert verdict(machine, architecture ^ 1, 0) == EPERM
    allowed = set(range(450)) - set(denied) - {clone, 435}
    assert {verdict(machine, architecture, number) for number in allowed} == {ALLOW}


@given(number=st.integers(0x4000_0000, 0xFFFF_FFFF))
def test_the_second_numbering_of_x86_is_denied_altogether(number: int) -> None:
    assert verdict("x86_64", MACHINES["x86_64"][0], number) == EPERM


def test_other_machines_have_no_filter() -> None:
    assert system_calls("riscv64") == b""
