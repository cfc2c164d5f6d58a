"""Evaluates expressions in a fresh process of a sandbox, after untrusted code."""

from __future__ import annotations

import inspect
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution import judge_in_sandbox
from finqa_plugins.sandboxes._execution import python_values as values
from finqa_plugins.sandboxes._execution.python_values import decode, encode

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_LONGEST_ERROR, _LONGEST_OUTPUT = 1500, 4096
"""Longest texts, in characters: the program in the sandbox sends less, but forged frames may be longer."""
_FORGED = "The code wrote to the channel of the values."


@dataclass(frozen=True, slots=True)
class Raised:
    """The value of an expression that raised an exception; `error` is like that of `Evaluation`."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one process.

    Attributes:
        values: Values of the expressions, in order, up to the one that failed.
        error: Why it stopped, in a few lines without paths and memory addresses, so that the same code gives the same
            text; empty if every expression was evaluated.
        failed_at: Index of the expression that failed; None if none did, also if the code itself failed.
        ending: How the process ended.
        stdout: The beginning of what the code printed.
    """

    values: tuple[object, ...]
    error: str
    failed_at: int | None
    ending: Ending
    stdout: str

    @property
    def ok(self) -> bool:
        """Whether every expression has a value, or with `keep_going` a `Raised`."""
        return not self.error


async def evaluate(
    sandbox: ExecutingSandbox,
    *,
    code: str,
    expressions: Sequence[str],
    setup: str = "",
    names: Mapping[str, object] | None = None,
    limits: ExecutionLimits | None = None,
    labels: Mapping[str, str] | None = None,
    keep_going: bool = False,
) -> Evaluation:
    """Execute `code`, then `setup`, then evaluate each expression in that namespace, all in one process.

    Code can at most change the values: if it ends early, prints, or forges frames, the evaluation fails or contains
    values that its functions could also have returned. So no argument may contain secrets, such as expected results,
    and the values are judged elsewhere.

    Args:
        sandbox: Sandbox that runs the process.
        code: Code of the policy; empty for an evaluation of trusted expressions only.
        expressions: Expressions; each value is sent by value (see `python_values`).
        setup: Code that is executed after `code`.
        names: Values bound to names before `setup`, and again before each expression.
        limits: Limits of the process.
        labels: See `ExecutionRequest.labels`.
        keep_going: Whether evaluation continues after an expression that raises, whose value is then `Raised`.

    Raises:
        SandboxError: The sandbox failed.
        Unencodable: A value of `names` is not plain data.
    """
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "code": code,
        "setup": setup,
        "names": {name: encode(value) for name, value in (names or {}).items()},
        "expressions": list(expressions),
        "keep_going": keep_going,
    }
    used = limits or ExecutionLimits()
    execution = ExecutionRequest(
        # -S: installed packages must not be visible to the code. Not -I: the sandbox sets the seed of hashes.
        argv=(PYTHON, "-s", "-S", "-c", _program()),
        stdin=json.dumps(request).encode("ascii"),
        limits=used,
        labels=labels or {},
    )
    return _read(await sandbox.execute(execution), nonce, len(expressions), used)


@cache
def _program() -> str:
    """Source of `python_values` and `judge_in_sandbox` as one program."""
    source = inspect.getsource(judge_in_sandbox)
    ours = ("from __future__", "from finqa_plugins")
    return inspect.getsource(values) + "".join(
        line for line in source.splitlines(keepends=True) if not line.startswith(ours)
    )


class _ForgedError(ValueError):
    """The channel contains data that our program does not write."""


def _read(result: ExecutionResult, nonce: str, count: int, limits: ExecutionLimits) -> Evaluation:
    try:
        return _evaluation(result, nonce, count, limits)
    except (ValueError, RecursionError):  # a frame that the code damaged
        return Evaluation(values=(), error=_FORGED, failed_at=None, ending=result.ending, stdout="")


def _evaluation(result: ExecutionResult, nonce: str, count: int, limits: ExecutionLimits) -> Evaluation:
    ready, found, error, output, ended = False, [], "", "", False
    for kind, payload in _frames(result, nonce):
        if ended:
            raise _ForgedError
        if kind == "ready" and not ready:
            ready = True
        elif kind == "value" and ready:
            found.append(decode(payload))
        elif kind == "raised" and ready:
            found.append(Raised(_scrubbed(json.loads(payload))))
        elif kind in ("end", "failed"):
            message, output = _last(payload)
            ended, error = True, message if kind == "failed" else ""
            if (kind == "failed") != bool(message) or (kind == "end" and len(found) != count):
                raise _ForgedError
        else:
            raise _ForgedError
    if len(found) > count or (error and len(found) == count > 0):
        raise _ForgedError
    if not ended or result.ending is not Ending.EXITED or result.exit_code != 0:
        error = _cause(result, limits)
    failed_at = len(found) if error and ready and len(found) < count else None
    return Evaluation(values=tuple(found), error=error, failed_at=failed_at, ending=result.ending, stdout=output)


def _frames(result: ExecutionResult, nonce: str) -> Iterator[tuple[str, str]]:
    """Yield kind and payload of each whole line; the last one may be cut if the process did not end by itself."""
    *lines, rest = result.stdout.decode("ascii", "replace").split("\n")
    if rest and not (result.ending is not Ending.EXITED and (rest.startswith(nonce) or nonce.startswith(rest))):
        raise _ForgedError
    for line in lines:
        mark, kind, payload = (*line.split(" ", 2), "", "")[:3]
        if not secrets.compare_digest(mark.encode(), nonce.encode()) or nonce in payload:
            raise _ForgedError  # also if the code prints the nonce, which must never be readable
        yield kind, payload


def _last(payload: str) -> tuple[str, str]:
    parts = json.loads(payload)
    if not isinstance(parts, list) or len(parts) != 2:
        raise _ForgedError
    return _scrubbed(parts[0]), _scrubbed(parts[1], _LONGEST_OUTPUT)


def _scrubbed(text: object, most: int = _LONGEST_ERROR) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise _ForgedError
    return printable(text[:most])


def printable(text: str) -> str:
    """Return a text that a policy, a terminal and a UTF-8 file can take, without addresses of memory."""
    plain = _ADDRESS.sub("0x...", text)
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in plain)


def _cause(result: ExecutionResult, limits: ExecutionLimits) -> str:
    if result.ending is Ending.TIME:
        return f"TimeoutError: not finished within {limits.cpu_s:g} s"
    if result.ending is Ending.OUTPUT:
        return "The code wrote too much output."
    if result.ending is Ending.KILLED:
        return "The process was killed: too much memory, or a crash."
    return f"The process ended early, with exit status {result.exit_code}."
