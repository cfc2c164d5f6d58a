"""Problems whose solution is a program with standard input and output, in the forms in which they are published.

| form          | fields                                                                                             |
| ------------- | -------------------------------------------------------------------------------------------------- |
| LiveCodeBench | `question_id`, `question_content`, `starter_code`, `public_test_cases`, `private_test_cases`,      |
|               | `metadata`; tests of type `functional` call a method of `class Solution` instead                   |
| APPS          | `problem_id`, `question`, `input_output` with `inputs`, `outputs` and perhaps `fn_name`; `solutions` |
| finqa         | `task_id`, `text`, `tests`: a list of objects with `input` and `output`; `code`                    |

Output is correct if its lines have the same words as the expected lines. Numbers are compared by value. Whitespace
between words and at the ends of lines and of the output is ignored.
"""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.documents import parse_json
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest
from finqa_plugins.environments._task_files.task_rows import FieldError, required_text
from finqa_plugins.environments.code.assert_parts import AssertOutcome, SplitTest, equality_test
from finqa_plugins.environments.code.code_problem import CodeProblem
from finqa_plugins.sandboxes._execution.evaluating import printable

_LONGEST = 1000
"""Longest input or output in a message, in characters."""

_LONGEST_PROGRAM = 100_000
"""Longest program in bytes; Linux allows 128 KiB for one argument of a process."""

_MOST_BYTES = 2**27
"""Largest size of the decompressed tests of one problem, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTest:
    """The input of a program, and the output that it must print."""

    input: str
    output: str

    @property
    def source(self) -> str:
        """The test as the author of a solution may read it."""
        return f"Input:\n{_cut(self.input)}\nExpected output:\n{_cut(self.output)}"

    @property
    def function(self) -> str:
        """A program needs no function."""
        return ""

    async def carry_out(
        self, code: str, sandbox: ExecutingSandbox, *, limits: ExecutionLimits, labels: Mapping[str, str]
    ) -> AssertOutcome:
        """Run a program on the input, in its own process, and compare its output.

        Raises:
            SandboxError: The sandbox failed.
        """
        if reason := _unrunnable(code):
            return AssertOutcome(passed=False, error=reason)
        request = ExecutionRequest(
            argv=(PYTHON, "-s", "-S", "-c", code), stdin=self.input.encode(), limits=limits, labels=labels
        )
        result = await sandbox.execute(request)
        printed = result.stdout.decode("utf-8", "replace")
        if result.ending is Ending.TIME:
            return AssertOutcome(passed=False, error=f"TimeoutError: not finished within {limits.cpu_s:g} s")
        if result.ending is not Ending.EXITED:
            return AssertOutcome(passed=False, error=f"The program was ended ({result.ending.value}).")
        if result.exit_code != 0:
            told = result.stderr.decode("utf-8", "replace").strip().splitlines()
            return AssertOutcome(passed=False, error=printable(_cut(told[-1])) if told else "The program failed.")
        passed = same_output(printed, self.output)
        return AssertOutcome(passed=passed, got="" if passed else f"\n{printable(_cut(printed))}")


def is_stdio(row: Mapping[str, Any]) -> bool:
    """Return whether a row has one of the forms."""
    return any(name in row for name in ("public_test_cases", "input_output", "tests"))


def read_stdio(row: Mapping[str, Any]) -> CodeProblem:
    """Read the problem in a row.

    Raises:
        FieldError: A field is missing or malformed.
    """
    if "public_test_cases" in row:
        return _of_livecodebench(row)
    if "input_output" in row:
        return _of_apps(row)
    tests = [_case("tests", case) for case in _list("tests", row["tests"])]
    return _problem(row, ("task_id",), required_text(row, "text"), tests, len(tests), str(row.get("code") or ""))


def same_output(printed: str, expected: str) -> bool:
    """Return whether two outputs have the same words in the same lines; numbers are compared by their value."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (printed, expected))
    return len(ours) == len(theirs) and all(
        len(left) == len(right) and all(map(_same_word, left, right)) for left, right in zip(ours, theirs, strict=True)
    )


def _unrunnable(code: str) -> str:
    """Return why a program cannot be the argument of a process; empty if it can."""
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        return f"SyntaxError: {error.reason}"
    if "\x00" in code:
        return "SyntaxError: source code cannot contain null bytes"
    if size > _LONGEST_PROGRAM:
        return f"SyntaxError: the program has {size} bytes, at most {_LONGEST_PROGRAM} are run"
    return ""


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False


def _of_livecodebench(row: Mapping[str, Any]) -> CodeProblem:
    public = _list("public_test_cases", _json("public_test_cases", row["public_test_cases"]))
    private = _list("private_test_cases", _private(row.get("private_test_cases") or "[]"))
    cases = [*public, *private]
    starter = str(row.get("starter_code") or "")
    text = required_text(row, "question_content")
    if starter.strip():
        text += f"\n\nBegin with this code:\n```python\n{starter.rstrip()}\n```"
    if not any(isinstance(case, Mapping) and case.get("testtype") == "functional" for case in cases):
        tests = [_case("public_test_cases", case) for case in cases]
        return _problem(row, ("question_id",), text, tests, len(public))
    metadata = _json("metadata", row.get("metadata") or "{}")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise FieldError("metadata", "must name the function of functional tests as func_name")
    calls = []
    for case in cases:
        given = _case("public_test_cases", case)
        arguments = [_json("public_test_cases", line) for line in given.input.splitlines() if line.strip()]
        calls.append(_call(f"Solution().{name}", arguments, _json("public_test_cases", given.output)))
    return CodeProblem(
        id=_identity(row, ("question_id",)),
        text=text,
        reference="",
        tests=tuple(calls),
        public=len(public),
    )


def _of_apps(row: Mapping[str, Any]) -> CodeProblem:
    cases = _json("input_output", row["input_output"])
    if not isinstance(cases, dict):
        raise FieldError("input_output", "must be an object with inputs and outputs")
    inputs, outputs = (_list("input_output", cases.get(name)) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs):
        raise FieldError("input_output", f"has {len(inputs)} inputs and {len(outputs)} outputs")
    solutions = _json("solutions", row.get("solutions") or "[]")
    reference = str(solutions[0]) if isinstance(solutions, list) and solutions else ""
    text = required_text(row, "question")
    if not cases.get("fn_name"):
        pairs = [{"input": left, "output": right} for left, right in zip(inputs, outputs, strict=True)]
        tests = [_case("input_output", pair) for pair in pairs]
        return _problem(row, ("problem_id", "id"), text, tests, 0, reference)
    name = str(cases["fn_name"])
    if not name.isidentifier():
        raise FieldError("input_output", "has an invalid fn_name")
    calls = tuple(
        _call(name, _list("input_output", given), _single(wanted))
        for given, wanted in zip(inputs, outputs, strict=True)
    )
    return CodeProblem(id=_identity(row, ("problem_id", "id")), text=text, reference=reference, tests=calls, public=0)


def _single(wanted: object) -> object:
    """Return the result of a call, which APPS wraps in a list with one item."""
    return wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted


def _call(function: str, arguments: Sequence[object], wanted: object) -> SplitTest:
    return equality_test(f"{function}({', '.join(map(repr, arguments))})", wanted)


def _problem(
    row: Mapping[str, Any],
    names: Sequence[str],
    text: str,
    tests: Sequence[ProgramTest],
    public: int,
    reference: str = "",
) -> CodeProblem:
    if not tests:
        raise FieldError(names[0], "is set, but the problem has no tests")
    asked = f"{text.rstrip()}\n\nWrite a program that reads standard input and writes standard output."
    return CodeProblem(id=_identity(row, names), text=asked, reference=reference, whole=tuple(tests), public=public)


def _identity(row: Mapping[str, Any], names: Sequence[str]) -> str:
    value = next((row[name] for name in names if name in row), None)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise FieldError(names[0], "must be a text or a number")
    return str(value).strip()


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(name, "must be a list")
    return value


def _case(name: str, case: object) -> ProgramTest:
    parts = [case.get(part) for part in ("input", "output")] if isinstance(case, Mapping) else []
    joined = ["\n".join(map(str, part)) if isinstance(part, list) else part for part in parts]
    if len(joined) != 2 or not all(isinstance(part, str) for part in joined):
        raise FieldError(name, "must have tests with the texts input and output")
    return ProgramTest(input=str(joined[0]), output=str(joined[1]))


def _json(name: str, value: object) -> Any:
    """Return the value of JSON text; a value that is not a text is returned as it is."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise FieldError(name, f"is no JSON: {error}") from error


class _TextOnly(pickle.Unpickler):
    """Reads pickled texts; refuses everything that needs a class."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def _private(value: object) -> Any:
    """Return private tests, which newer files of LiveCodeBench compress: JSON, pickled, zlib, base64.

    Raises:
        FieldError: The value is neither JSON nor its compressed form, or too large.
    """
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{"):
        return _json("private_test_cases", value)
    try:
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(base64.b64decode(value, validate=True), _MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise FieldError("private_test_cases", f"unpacks to more than {_MOST_BYTES} bytes")
        text = _TextOnly(io.BytesIO(packed)).load()
    except FieldError:
        raise
    except Exception as error:  # pickle raises all kinds at damaged bytes
        raise FieldError("private_test_cases", f"is neither JSON nor its compressed form: {error}") from error
    return _json("private_test_cases", text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
