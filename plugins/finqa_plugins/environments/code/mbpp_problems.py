"""Problems of MBPP (Austin et al., arXiv 2108.07732), read from its published files, or embedded.

Rows of HumanEval and of stdio programs are read too, see `humaneval_problems` and `stdio_problems`. MBPP's rows have:

| field                               | meaning                                                               |
| ----------------------------------- | --------------------------------------------------------------------- |
| `task_id`                           | number; gives the split if the file does not                          |
| `text`, in sanitized files `prompt` | what is asked                                                         |
| `code`                              | a solution; may be missing                                            |
| `test_list`                         | assert statements                                                     |
| `test_setup_code` or `test_imports` | executed after the solution and before the tests; may be missing      |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import split_of_name
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowReader,
    TaskData,
    checked_text,
    embedded_data,
    group_by_split,
)
from finqa_plugins.environments.code.assert_parts import TestProblem, defined_names, equality_test, split_test
from finqa_plugins.environments.code.code_problem import MAX_TESTS, CodeProblem
from finqa_plugins.environments.code.humaneval_problems import read_humaneval
from finqa_plugins.environments.code.list_functions import ARGUMENTS, FUNCTION, ListFunction, list_functions
from finqa_plugins.environments.code.stdio_problems import is_stdio, read_stdio

MAX_BYTES = 2**28

MAX_TEXT = 200_000
_ENDINGS = (".jsonl", ".json", ".parquet")
_REMEDY = "--data with mbpp.jsonl, HumanEval.jsonl, or a folder such as `finqa data fetch mbpp` makes"


def read_problem(row: object) -> CodeProblem:
    """Read the problem in a row.

    Raises:
        RowError: A field is missing or malformed.
    """
    if not isinstance(row, Mapping):
        raise RowError("must be an object")
    if "entry_point" in row and "test" in row:
        return read_humaneval(row)
    if is_stdio(row):
        return read_stdio(row)
    number = row.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise FieldError("task_id", "must be a natural number")
    reference = _text(row, "code", optional=True)
    setup = _text(row, "test_setup_code", optional=True) or "\n".join(_texts(row, "test_imports", optional=True))
    defined = defined_names(reference) | defined_names(setup)
    sources = _texts(row, "test_list")
    try:
        tests = tuple(split_test(source, defined) for source in sources)
    except TestProblem as error:
        raise FieldError("test_list", str(error)) from error
    name = "text" if row.get("text") is not None else "prompt"
    return CodeProblem(id=str(number), text=_text(row, name), tests=tests, reference=reference, setup=setup)


def _number(problem: CodeProblem) -> int:
    """Return the number in an id, such as 7 in `HumanEval/7`; -1 for ids without one, which sort first."""
    return int("".join(filter(str.isdecimal, problem.id)) or -1)


def _split(file: Path, problem: CodeProblem) -> str:
    """Return the split by the name of the file, else by the number of an MBPP problem; others are test data."""
    of_mbpp = not problem.whole and problem.public == MAX_TESTS
    return split_of_name(file) or (split_of_id(_number(problem)) if of_mbpp else "test")


def split_of_id(number: int) -> str:
    """Return the split of a number: 1 to 10 are for few-shot prompts, then come test, validation (`dev`) and train."""
    if number <= 10:
        return "prompt"
    return "test" if number <= 510 else "dev" if number <= 600 else "train"


def _text(row: Mapping[str, Any], name: str, *, optional: bool = False) -> str:
    value = row.get(name)
    if value is None and optional:
        return ""
    text = _checked(name, value).replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if not text.strip() and not optional:
        raise FieldError(name, "must not be empty")
    return text


def _texts(row: Mapping[str, Any], name: str, *, optional: bool = False) -> list[str]:
    values = row.get(name)
    if values is None and optional:
        return []
    if not isinstance(values, list) or (not values and not optional):
        raise FieldError(name, "must be a list of texts that is not empty")
    if len(values) > MAX_TESTS:
        raise FieldError(name, f"has {len(values)} texts, but at most {MAX_TESTS} are supported")
    return [_checked(name, value).replace("\r\n", "\n").strip() for value in values]


def _checked(name: str, value: object) -> str:
    text = checked_text(name, value, MAX_TEXT)
    if "\x00" in text:
        raise FieldError(name, "is not valid text: it holds a NUL character")
    return text


def embedded_problems() -> TaskData[CodeProblem]:
    """Read the problems that ship with the package."""
    with resources.as_file(resources.files("finqa_plugins.environments.code").joinpath("embedded.jsonl")) as file:
        return _read("embedded", [file])


def load_problems(path: Path) -> TaskData[CodeProblem]:
    """Read the problems at a path.

    A file named train, dev, validation or test is that split; otherwise `task_id` gives the split. If a folder has a
    subfolder `full`, the files in that are read, else those in the folder itself.

    Raises:
        DataError: A file or row is missing or malformed (file, row, field, reason), or two problems have one number.
        MissingDependencyError: A parquet file needs pyarrow, which is not installed.
    """
    if not path.is_dir():
        return _read(path.name, [path])
    folder = path / "full" if (path / "full").is_dir() else path
    files = sorted(file for file in folder.iterdir() if file.suffix in _ENDINGS and file.name != "fetch.json")
    if not files:
        raise DataError(f"{folder} contains no file of problems ({', '.join(_ENDINGS)}).", remedy=_REMEDY)
    return _read(path.resolve().name, files)


def _read(name: str, files: Sequence[Path]) -> TaskData[CodeProblem]:
    reader = RowReader(lambda value, _: read_problem(value), max_bytes=MAX_BYTES, remedy=_REMEDY, id_field="task_id")
    found, digest = [], hashlib.sha256()
    for file in files:
        problems, sha256 = reader.read(file)
        found += [(_split(file, problem), problem) for problem in problems]
        digest.update(bytes.fromhex(sha256))
    reader.finish(any_row=bool(found))
    rows = group_by_split(sorted(found, key=lambda each: (_number(each[1]), each[1].id)))
    return TaskData(info=DataInfo(name=name, digest=f"sha256:{digest.hexdigest()}"), rows=rows)


_ARGUMENTS = (*ARGUMENTS[2:], *ARGUMENTS[:2])
"""Arguments that begin with an ordinary list: the first tests are the ones that a prompt shows."""


def function_problems(count: int, seed: int) -> TaskData[CodeProblem]:
    """Make `count` different problems of the generated family; see `list_functions`."""
    functions = list_functions(count, seed)
    rows = group_by_split((function.split, _problem(function)) for function in functions)
    return embedded_data(rows, repr(functions))


def _problem(function: ListFunction) -> CodeProblem:
    return CodeProblem(
        id=function.id,
        text=function.text,
        tests=tuple(
            equality_test(f"{FUNCTION}({argument})", result)
            for argument, result in zip(_ARGUMENTS, _results(function), strict=True)
        ),
        reference=function.solution.rstrip(),
        careless=function.careless.rstrip(),
    )


def _results(function: ListFunction) -> list[object]:
    """Return the results for all arguments. `eval` gets only text that this package generated."""
    found: list[object] = eval(f"[({function.reference})(xs) for xs in [{', '.join(_ARGUMENTS)}]]")
    return found
