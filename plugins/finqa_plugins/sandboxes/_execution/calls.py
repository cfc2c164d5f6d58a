"""Writes the request to execute a command in a sandbox, and reads the reply."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import secrets
import zlib
from functools import cache
from importlib.resources import files

from finqa_cli.errors import SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution.seccomp import MACHINES, filter_program

OVERHEAD_S = 30.0
"""Seconds of a reply in addition to `wall_s`: two starts of Python in a busy sandbox, and the clean-up."""

_KEY = secrets.token_bytes(32)
_FOLDER = files(__package__ or "")
_IN_SANDBOX = ("enclosure", "supervise_in_sandbox")
_LOADER = """import sys, types
for name, source in {sources!r}:
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), sys.modules[name].__dict__)
sys.modules[{main!r}].main()
"""
_NOT_STARTED = (126, 127)
_BY_A_SIGNAL = 128


def command(request: ExecutionRequest) -> tuple[tuple[str, ...], bytes]:
    """Return the command line to run in the sandbox, as root where possible, and the bytes for its stdin."""
    limits = request.limits
    sent = {
        "mark": _mark(request),
        "argv": list(request.argv),
        "python": PYTHON,
        "stdin": base64.b64encode(zlib.compress(request.stdin)).decode(),
        "limits": {
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "disk_bytes": limits.disk_bytes,
            "output_bytes": limits.output_bytes,
        },
        "filters": {machine: base64.b64encode(filter_program(machine, sockets=False)).decode() for machine in MACHINES},
    }
    return (PYTHON, "-I", "-S", "-c", _program()), json.dumps(sent).encode()


def deadline_s(request: ExecutionRequest) -> int:
    """Return the seconds, rounded up, after which the sandbox is at fault and not the code."""
    return math.ceil(request.limits.wall_s + OVERHEAD_S)


def result(stdout: bytes, exit_code: int, request: ExecutionRequest) -> ExecutionResult:
    """Return the result of a request from the output of its command line.

    Args:
        stdout: Everything that the command line wrote; other lines are skipped.
        exit_code: Exit code of the command line; negative, or 128 and more, for a signal.
        request: The request that `command` was called with, in this process.

    Raises:
        SandboxError: The sandbox could not execute the command. The code cannot cause this: code that kills the
            supervisor gets the ending `killed`.
    """
    mark = _mark(request).encode() + b" "
    for line in reversed(stdout.splitlines()):
        if line.startswith(mark):
            return _read(line[len(mark) :], request)
    if exit_code < 0 or exit_code > _BY_A_SIGNAL:
        return _killed(request)
    said = " ".join(stdout[-300:].decode("utf-8", "replace").split())
    if exit_code in _NOT_STARTED:
        raise SandboxError(
            f"The sandbox has no {PYTHON} that starts (exit code {exit_code}); its image needs 3.11 or newer: {said}"
        )
    raise SandboxError(f"The sandbox did not report on an execution (exit code {exit_code}): {said}")


def _mark(request: ExecutionRequest) -> str:
    """Return the mark of the reply to a request, an HMAC that only this process can compute."""
    content = repr((request.argv, request.stdin, request.limits)).encode()
    return "finqa-" + hmac.new(_KEY, content, hashlib.sha256).hexdigest()


def _read(line: bytes, request: ExecutionRequest) -> ExecutionResult:
    try:
        reply = json.loads(line)
        if "refused" in reply:
            raise SandboxError(f"The sandbox cannot execute code: {reply['refused']}")
        ending = Ending(reply["ending"])
        return ExecutionResult(
            ending=ending,
            exit_code=int(reply["exit_code"]) if ending is Ending.EXITED else None,
            stdout=_unpacked(reply["stdout"], request.limits.output_bytes),
            stderr=_unpacked(reply["stderr"], request.limits.output_bytes),
            seconds=float(reply["seconds"]),
        )
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise SandboxError(f"The sandbox's report on an execution is damaged ({type(error).__name__}).") from error


def _unpacked(text: str, most: int) -> bytes:
    return zlib.decompressobj().decompress(base64.b64decode(text), most + 1)[:most]


def _killed(request: ExecutionRequest) -> ExecutionResult:
    return ExecutionResult(ending=Ending.KILLED, exit_code=None, stdout=b"", stderr=b"", seconds=request.limits.wall_s)


@cache
def _program() -> str:
    """Return the modules of this folder that run in the sandbox, as one text for `python3 -c`."""
    sources = [(f"{__package__}.{name}", _FOLDER.joinpath(f"{name}.py").read_text("utf-8")) for name in _IN_SANDBOX]
    return _LOADER.format(sources=sources, main=sources[-1][0])
