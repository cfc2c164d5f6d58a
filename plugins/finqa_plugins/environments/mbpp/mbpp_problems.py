"""One problem of MBPP (Austin et al., arXiv 2108.07732), read from a row of any of its published files.

| field                               | meaning                                                               |
| ----------------------------------- | --------------------------------------------------------------------- |
| `task_id`                           | number; tells the split where the file does not                       |
| `text`, in sanitized files `prompt` | what is asked                                                         |
| `code`                              | a solution; may be missing                                            |
| `test_list`                         | assert statements                                                     |
| `test_setup_code` or `test_imports` | executed after the solution and before the tests; may be missing      |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finqa_plugins.environments.mbpp.tests_in_parts import SplitTest, TestProblem, defined_names, split_test

MAX_TEXT = 200_000
MAX_TESTS = 200


class InputError(Exception):
    """What is wrong with a row, in words that follow its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem.

    Attributes:
        id: `task_id` as text, or the name of an embedded function.
        text: What is asked.
        tests: At least one.
        reference: A solution; empty when the data has none.
        setup: Executed after the solution.
        careless: What a careless programmer writes instead of the reference; empty for no such demonstration.
    """

    id: str
    text: str
    tests: tuple[SplitTest, ...]
    reference: str
    setup: str
    careless: str = ""

    def opening(self, shown: int) -> str:
        """The question with its first `shown` tests."""
        asked = f"{self.text}\n"
        if tests := self.tests[:shown]:
            listed = "\n".join(test.source for test in tests)
            asked += f"\nYour code must pass these tests:\n```python\n{listed}\n```\n"
        return f"{asked}\nReply with the complete code in one ```python block."


def read_problem(row: object) -> Problem:
    """The problem in a row.

    Raises:
        InputError: A field is missing or malformed.
    """
    if not isinstance(row, Mapping):
        raise InputError("must be an object")
    number = row.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InputError("field 'task_id': must be a natural number")
    reference = _text(row, "code", optional=True)
    setup = _text(row, "test_setup_code", optional=True) or "\n".join(_texts(row, "test_imports", optional=True))
    defined = defined_names(reference) | defined_names(setup)
    sources = _texts(row, "test_list")
    try:
        tests = tuple(split_test(source, defined) for source in sources)
    except TestProblem as error:
        raise InputError(f"field 'test_list': {error}") from error
    name = "text" if row.get("text") is not None else "prompt"
    return Problem(id=str(number), text=_text(row, name), tests=tests, reference=reference, setup=setup)


def split_of_id(number: int) -> str:
    """The published division of MBPP: 1 to 10 are for few-shot prompts, then test, validation (`dev`) and train."""
    if number <= 10:
        return "prompt"
    return "test" if number <= 510 else "dev" if number <= 600 else "train"


def _text(row: Mapping[str, Any], name: str, *, optional: bool = False) -> str:
    value = row.get(name)
    if value is None and optional:
        return ""
    text = _checked(name, value).replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if not text.strip() and not optional:
        raise InputError(f"field {name!r}: must not be empty")
    return text


def _texts(row: Mapping[str, Any], name: str, *, optional: bool = False) -> list[str]:
    values = row.get(name)
    if values is None and optional:
        return []
    if not isinstance(values, list) or (not values and not optional):
        raise InputError(f"field {name!r}: must be a list of texts that is not empty")
    if len(values) > MAX_TESTS:
        raise InputError(f"field {name!r}: has {len(values)} texts, at most {MAX_TESTS} are taken")
    return [_checked(name, value).replace("\r\n", "\n").strip() for value in values]


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"field {name!r}: must be a text")
    if len(value) > MAX_TEXT:
        raise InputError(f"field {name!r}: holds {len(value)} characters, at most {MAX_TEXT} are taken")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"field {name!r}: is not valid text")
    return value
