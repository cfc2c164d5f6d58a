"""How the reply of a sandbox is read: what is a fault of the sandbox, and what the code's own doing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest
from finqa_plugins.sandboxes._execution import enclosure
from finqa_plugins.sandboxes._execution.calls import command, deadline_s, result

REQUEST = ExecutionRequest(argv=(PYTHON, "-I", "-c", "print('hello')"), stdin=b"in")


@pytest.fixture(scope="module")
def reply() -> bytes:
    argv, sent = command(REQUEST)
    return subprocess.run([sys.executable, *argv[1:]], input=sent, capture_output=True, check=True).stdout


def test_a_report_among_other_lines(reply: bytes) -> None:
    found = result(b"Welcome to the sandbox\n" + reply + b"logout\n", 0, REQUEST)
    assert (found.ending, found.exit_code, found.stdout, found.stderr) == (Ending.EXITED, 0, b"hello\n", b"")
    assert 0 < found.seconds < 60


def test_the_report_on_another_request_is_none(reply: bytes) -> None:
    another = ExecutionRequest(argv=REQUEST.argv, stdin=b"other")
    with pytest.raises(SandboxError, match="did not report"):
        result(reply, 0, another)


@pytest.mark.parametrize("code", [137, 139, 143, -9])
def test_a_supervisor_that_is_killed_is_the_codes_doing(code: int) -> None:
    found = result(b"Killed\n", code, REQUEST)
    assert (found.ending, found.exit_code, found.stdout) == (Ending.KILLED, None, b"")


@pytest.mark.parametrize("code", [126, 127])
def test_a_sandbox_without_python_is_a_fault_that_names_the_version(code: int) -> None:
    with pytest.raises(SandboxError, match=r"no python3 .* needs 3\.11 or newer"):
        result(b"sh: python3: not found\n", code, REQUEST)


@pytest.mark.parametrize("code", [0, 1, 124])
def test_silence_is_a_fault(code: int) -> None:
    with pytest.raises(SandboxError, match="did not report"):
        result(b"", code, REQUEST)


def mark() -> str:
    mark = json.loads(command(REQUEST)[1])["mark"]
    assert isinstance(mark, str)
    return mark


def test_a_sandbox_that_cannot_execute_says_why() -> None:
    said = f"{mark()} {json.dumps({'refused': 'no other user can be had'})}"
    with pytest.raises(SandboxError, match="no other user can be had"):
        result(said.encode(), 0, REQUEST)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
fields = ("ending", "exit_code", "stdout", "stderr", "seconds")


@given(
    st.one_of(
        json_values.map(json.dumps),
        st.fixed_dictionaries({}, optional=dict.fromkeys(fields, json_values)).map(json.dumps),
        st.text(),
    )
)
def test_a_damaged_report_is_a_fault_and_never_a_crash(report: str) -> None:
    with pytest.raises(SandboxError):
        result(f"{mark()} {report}\n".encode("utf-8", "replace"), 0, REQUEST)


def test_output_is_bounded_here_too(reply: bytes) -> None:
    small = ExecutionRequest(argv=REQUEST.argv, stdin=b"in", limits=ExecutionLimits(output_bytes=2))
    report = json.loads(reply.split(b" ", 1)[1])
    line = f"{json.loads(command(small)[1])['mark']} {json.dumps(report)}"
    assert result(line.encode(), 0, small).stdout == b"he"


def test_the_sandbox_is_given_more_time_than_the_code() -> None:
    """Also for what is cleaned up after it."""
    assert deadline_s(REQUEST) >= REQUEST.limits.wall_s + 2 * enclosure.CLEAN_S + 5
