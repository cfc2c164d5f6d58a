"""The generated family of simple functions as problems in MBPP's form."""

from __future__ import annotations

import hashlib

from finqa_cli.types import DataInfo
from finqa_plugins.environments._list_functions.family import ARGUMENTS, FUNCTION, ListFunction, list_functions
from finqa_plugins.environments.mbpp.mbpp_files import SPLITS, Problems
from finqa_plugins.environments.mbpp.mbpp_problems import Problem
from finqa_plugins.environments.mbpp.tests_in_parts import ASKED, Expected, SplitTest

_ARGUMENTS = (*ARGUMENTS[2:], *ARGUMENTS[:2])
"""Begins with an ordinary list: the first tests are the ones that a prompt shows."""


def function_problems(count: int, seed: int) -> Problems:
    """`count` different problems; see `list_functions`."""
    functions = list_functions(count, seed)
    digest = hashlib.sha256(repr(functions).encode()).hexdigest()
    by_split = {split: tuple(_problem(one) for one in functions if one.split == split) for split in SPLITS}
    return Problems(
        info=DataInfo(name="embedded", digest=f"sha256:{digest}"),
        by_split={split: problems for split, problems in by_split.items() if problems},
    )


def _problem(function: ListFunction) -> Problem:
    return Problem(
        id=function.id,
        text=function.text,
        tests=tuple(map(_test, _ARGUMENTS, _results(function))),
        reference=function.solution.rstrip(),
        setup="",
        careless=function.careless.rstrip(),
    )


def _test(argument: str, result: object) -> SplitTest:
    """What `split_test` would make of the source: thousands of them would be parsed at every start."""
    asked = f"{FUNCTION}({argument})"
    return SplitTest(
        source=f"assert {asked} == {result!r}",
        asked=(asked,),
        verdict=f"{ASKED}0 == {result!r}",
        expected=Expected(result),
        modules=(),
    )


def _results(function: ListFunction) -> list[object]:
    """Of all arguments. What is evaluated is the family's own text; nobody else wrote any of it."""
    found: list[object] = eval(f"[({function.reference})(xs) for xs in [{', '.join(_ARGUMENTS)}]]")
    return found
