"""The program inside the sandbox: it executes the code, then evaluates expressions and sends each value to the host.

The source of `python_values` and of this module are one program for `python -c`. The code that it executes runs in the
same process and can do everything that this module can. So no verdict is made here: frames only contain values, the
expected values are not here, and code that forges a frame has only found another way to return a value.
"""

from __future__ import annotations

import io
import json
import os
import sys
from types import CodeType, TracebackType
from typing import Any, NoReturn

from finqa_plugins.sandboxes._execution.python_values import decode, encode

SOLUTION = "<solution>"
_FRAMES = 4
_LONGEST_ERROR = 600
_LONGEST_LINE = 120
_LONGEST_OUTPUT = 4096


class _Kept(io.RawIOBase):
    """A standard output that keeps its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        self.content += content[: _LONGEST_OUTPUT - len(self.content)]
        return len(content)


class _Channel:
    """The channel to the host: lines that begin with the nonce."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        self.kept = _Kept()
        sys.stdout = io.TextIOWrapper(self.kept, encoding="utf-8", errors="backslashreplace", write_through=True)

    def send(self, kind: str, payload: str) -> None:
        data = f"{self._nonce} {kind} {payload}\n".encode("ascii")
        while data:
            data = data[os.write(self._out, data) :]

    def finish(self, kind: str, payload: Any) -> NoReturn:
        """End the process at once: threads and exit handlers of the code cannot run after the last frame."""
        output = self.kept.content.decode("utf-8", "replace")
        self.send(kind, json.dumps([payload, output]))
        os._exit(0)


def main() -> None:
    """Read the request from standard input and execute it."""
    request = json.loads(sys.stdin.buffer.read())
    channel = _Channel(request["nonce"])
    module = type(sys)("solution")  # a registered module, which dataclasses and others look up
    sys.modules[module.__name__] = module
    space = module.__dict__
    names, code = request["names"], request["code"]
    try:
        exec(_compiled(code, SOLUTION, "exec"), space)
        _bind(space, names)
        exec(_compiled(request["setup"], "<setup>", "exec"), space)
    except BaseException as error:
        channel.finish("failed", _described(error, code))
    channel.send("ready", "null")
    for expression in request["expressions"]:
        try:
            # Bound afresh: an earlier expression may have changed its arguments.
            _bind(space, {name: text for name, text in names.items() if name in expression})
            channel.send("value", encode(eval(_compiled(expression, "<test>", "eval"), space)))
        except BaseException as error:
            if not request["keep_going"]:
                channel.finish("failed", _described(error, code))
            channel.send("raised", json.dumps(_described(error, code)))
    channel.finish("end", None)


def _compiled(source: str, name: str, mode: str) -> CodeType:
    compiled: CodeType = compile(source, name, mode, dont_inherit=True)  # not our `from __future__`
    return compiled


def _bind(space: dict[str, Any], names: dict[str, str]) -> None:
    space.update({name: decode(text) for name, text in names.items()})


def _described(error: BaseException, source: str) -> str:
    """Return a short traceback of the code's own lines, without anything that differs from run to run."""
    lines = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == SOLUTION:
            where = "" if code.co_name == "<module>" else f", in {code.co_name}"
            lines.append(f"line {trace.tb_lineno}{where}")
        trace = trace.tb_next
    if len(lines) > _FRAMES:
        lines = [*lines[:1], "...", *lines[1 - _FRAMES :]]
    try:
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error)[:_LONGEST_ERROR].split())
    except BaseException:
        message = ""
    if isinstance(error, SyntaxError) and error.filename == SOLUTION:
        lines += _place(error, source)
    kind = "TypeError" if type(error).__name__ == "Unencodable" else type(error).__name__
    last = f"{kind}: {message}" if message else kind
    return "\n".join([*lines, last.replace(os.getcwd(), ".")[:_LONGEST_ERROR]])  # noqa: PTH109 - pathlib is slow to import


def _place(error: SyntaxError, source: str) -> list[str]:
    """Show a syntax error: the number of the line, the line, and marks below the error."""
    found: list[str] = []
    try:
        number, offset = error.lineno or 1, error.offset or 1
        found.append(f"line {number}")
        text = (error.text or list(io.StringIO(source, newline=None))[number - 1]).split("\n")[0].rstrip()
        margin = len(text) - len(text.lstrip())
        first = max(offset - 1, margin)
        last = (error.end_offset or offset) - 1 if error.end_lineno == number else len(text)
        begin = max(first - _LONGEST_LINE // 2, margin)
        shown, end = text[begin:][:_LONGEST_LINE], begin + _LONGEST_LINE
        below = "".join(character if character == "\t" else " " for character in text[begin:first].ljust(first - begin))
        found += [f"    {shown}", f"    {below}{'^' * max(min(last, end) - first, 1)}"] if shown else []
    except BaseException:  # an error that the code raised itself may contain anything
        return found[:1]
    return found


if __name__ == "__main__":
    main()
