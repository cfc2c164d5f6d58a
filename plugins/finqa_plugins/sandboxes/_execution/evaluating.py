"""Evaluates expressions in a fresh process of a box, after code that nobody trusts."""

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
"""Characters that are believed: the program in the box keeps to less, whoever forges its frames need not."""
_FORGED = "The code wrote to the channel of the values."


@dataclass(frozen=True, slots=True)
class Raised:
    """In place of a value: the expression raised. `error` is as in `Evaluation`."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came of one process.

    Attributes:
        values: Of the expressions, in order, up to the one that failed.
        error: Why it stopped: a few lines that hold no path, no address and nothing of this module, so that the same
            code gives the same text; empty when every expression was evaluated.
        failed_at: Place of the expression that failed; None when none did, also when the code itself failed.
        ending: Of the process.
        stdout: The beginning of what the code printed.
    """

    values: tuple[object, ...]
    error: str
    failed_at: int | None
    ending: Ending
    stdout: str

    @property
    def ok(self) -> bool:
        """Every expression has a value, or `Raised` where that was asked for."""
        return not self.error


async def evaluate(
    box: ExecutingSandbox,
    *,
    code: str,
    expressions: Sequence[str],
    setup: str = "",
    names: Mapping[str, object] | None = None,
    limits: ExecutionLimits | None = None,
    labels: Mapping[str, str] | None = None,
    go_on: bool = False,
) -> Evaluation:
    """Executes `code`, then `setup`, then evaluates each expression in that namespace, all in one process.

    What code can do to the process is no more than return other values: it ends early, prints, forges a frame or sends
    two, and the evaluation has failed or holds values that its functions might as well have returned. So nothing that
    is not to be known may be in any argument, and what is right is decided elsewhere.

    Args:
        box: Where.
        code: What the policy wrote; empty for an evaluation of our own.
        expressions: Each is sent by value (see `values`).
        setup: Executed after the code.
        names: Bound by value from `setup` on, and afresh for each expression.
        limits: Of the process.
        labels: As `ExecutionRequest.labels`.
        go_on: An expression that raises gives `Raised` and the next one is evaluated, instead of ending it all.

    Raises:
        SandboxError: The box failed.
        Unencodable: A name's value is no plain data.
    """
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "code": code,
        "setup": setup,
        "names": {name: encode(value) for name, value in (names or {}).items()},
        "expressions": list(expressions),
        "go_on": go_on,
    }
    used = limits or ExecutionLimits()
    execution = ExecutionRequest(
        # -S: what the Python has installed is no business of the code. Not -I: the box names the seed of hashes.
        argv=(PYTHON, "-s", "-S", "-c", _program()),
        stdin=json.dumps(request).encode("ascii"),
        limits=used,
        labels=labels or {},
    )
    return _read(await box.execute(execution), nonce, len(expressions), used)


@cache
def _program() -> str:
    """Source of `python_values` and `judge_in_sandbox` as one program."""
    source = inspect.getsource(judge_in_sandbox)
    ours = ("from __future__", "from finqa_plugins")
    return inspect.getsource(values) + "".join(
        line for line in source.splitlines(keepends=True) if not line.startswith(ours)
    )


class _ForgedError(ValueError):
    """The channel holds what our program does not write."""


def _read(result: ExecutionResult, nonce: str, count: int, limits: ExecutionLimits) -> Evaluation:
    try:
        return _evaluation(result, nonce, count, limits)
    except (ValueError, RecursionError):  # whatever the code makes of a frame
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
    """Kind and payload of each whole line; the last one may be cut where the process did not end by itself."""
    *lines, rest = result.stdout.decode("ascii", "replace").split("\n")
    if rest and not (result.ending is not Ending.EXITED and (rest.startswith(nonce) or nonce.startswith(rest))):
        raise _ForgedError
    for line in lines:
        mark, kind, payload = (*line.split(" ", 2), "", "")[:3]
        if not secrets.compare_digest(mark.encode(), nonce.encode()) or nonce in payload:
            raise _ForgedError  # also where the code says the nonce: it is to be read by nobody, spent or not
        yield kind, payload


def _last(payload: str) -> tuple[str, str]:
    parts = json.loads(payload)
    if not isinstance(parts, list) or len(parts) != 2:
        raise _ForgedError
    return _scrubbed(parts[0]), _scrubbed(parts[1], _LONGEST_OUTPUT)


def _scrubbed(text: object, most: int = _LONGEST_ERROR) -> str:
    """What a policy, a terminal and a file of UTF-8 can take."""
    if text is None:
        return ""
    if not isinstance(text, str):
        raise _ForgedError
    plain = _ADDRESS.sub("0x...", text[:most])
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in plain)


def _cause(result: ExecutionResult, limits: ExecutionLimits) -> str:
    if result.ending is Ending.TIME:
        return f"TimeoutError: not finished within {limits.cpu_s:g} s"
    if result.ending is Ending.OUTPUT:
        return "The code wrote too much output."
    if result.ending is Ending.KILLED:
        return "The process was killed: too much memory, or a crash."
    return f"The process ended early, with exit status {result.exit_code}."
