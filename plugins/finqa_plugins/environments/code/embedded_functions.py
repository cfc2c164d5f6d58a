"""Embedded tasks: the seed's two tasks with held-out relatives, and a generated family of functions on lists.

A function of the family reduces what is left of a filter, after a map. Phrases and numbers of held-out functions occur
in training, but never in the same combination.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

from finqa_plugins.environments.code.function_tasks import FunctionTask

_NO_SORTING = ("sorted(", ".sort(", "heapq", "import ", "__import__")

_SORTING_PROMPT = '''\
# Sorting by hand, as an exercise: this function uses neither sorted() nor list.sort() nor heapq, and imports nothing.
# It is an algorithm written from scratch in plain Python.
def {name}(xs: list[int]) -> list[int]:
    """Sort a list of integers {order}.

    Args:
        xs: The integers to be sorted, in any order.

    Returns:
        A new list of the same integers, sorted.
    """
'''
_SORTING_TESTS = (
    "[]",
    "[1, 3, 2]",
    "[random.randint(-1000, 1000) for _ in range(200)]",
    "[random.randint(-100, 100) for _ in range(1000)]",
    "list(range(0, 100)) + list(range(200, 100, -1)) + list(range(200, 300))",
)
_SORTING_SOLUTION = """
def {name}(xs):
    if len(xs) < 2:
        return list(xs)
    middle = len(xs) // 2
    left, right = {name}(xs[:middle]), {name}(xs[middle:])
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if {first}:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]
"""

_SUBARRAY_PROMPT = '''\
# There are many ways to find the {extreme} sum of a contiguous part of a list, from nested loops on. This is mine.
def {name}(xs: list[int]) -> int:
    """Return the {extreme} sum of a contiguous part of xs that is not empty.

    Args:
        xs: Integers, at least one.

    Returns:
        The {extreme} of the sums of all such parts.
    """
'''
_SUBARRAY_TESTS = (
    "[5]",
    "[-3]",
    "[-2, -3, -1, -4]",
    "[-2, 1, -3, 4, -1, 2, 1, -5, 4]",
    "[1, 2, 3, 4]",
    "[random.randint(-1000, 1000) for _ in range(200)]",
    "[random.randint(-100, 100) for _ in range(1000)]",
)
_SUBARRAY_SOLUTION = """\
def {name}(xs):
    best = current = xs[0]
    for x in xs[1:]:
        current = {choice}(x, current + x)
        best = {choice}(best, current)
    return best
"""
_ABSOLUTE_SOLUTION = """\
def {name}(xs):
    total = highest = lowest = 0
    for x in xs:
        total += x
        highest, lowest = max(highest, total), min(lowest, total)
    return highest - lowest
"""


def seed_tasks() -> tuple[FunctionTask, ...]:
    """`sorting` and `max_subarray` to train on, a relative of each in `dev` and in `test`."""
    return (
        _sorting("sorting", "sort_numbers", "in ascending order", "sorted", "left[i] <= right[j]"),
        _subarray("max_subarray", "max_subarray_sum", "largest", "_kadane", _SUBARRAY_SOLUTION, choice="max"),
        _sorting(
            "descending",
            "sort_from_the_top",
            "in descending order",
            "lambda xs: sorted(xs, reverse=True)",
            "left[i] >= right[j]",
            split="dev",
        ),
        _subarray(
            "min_subarray",
            "min_subarray_sum",
            "smallest",
            "lambda xs: -_kadane([-x for x in xs])",
            _SUBARRAY_SOLUTION,
            choice="min",
            split="dev",
        ),
        _sorting(
            "by_distance",
            "sort_by_distance",
            "by their distance from zero, of two as far the negative one first",
            "lambda xs: sorted(xs, key=lambda x: (abs(x), x))",
            "(abs(left[i]), left[i]) <= (abs(right[j]), right[j])",
            split="test",
        ),
        _subarray(
            "absolute_subarray",
            "max_absolute_sum",
            "largest absolute",
            "lambda xs: max(_kadane(xs), _kadane([-x for x in xs]))",
            _ABSOLUTE_SOLUTION,
            split="test",
        ),
    )


def _sorting(identity: str, name: str, order: str, reference: str, first: str, split: str = "train") -> FunctionTask:
    return FunctionTask(
        id=identity,
        prompt=_SORTING_PROMPT.format(name=name, order=order),
        func_name=name,
        banned=_NO_SORTING,
        tests=_SORTING_TESTS,
        reference=reference,
        split=split,
        solution=_SORTING_SOLUTION.format(name=name, first=first),
        kind="sorting",
    )


def _subarray(
    identity: str, name: str, extreme: str, reference: str, solution: str, choice: str = "", split: str = "train"
) -> FunctionTask:
    return FunctionTask(
        id=identity,
        prompt=_SUBARRAY_PROMPT.format(name=name, extreme=extreme),
        func_name=name,
        tests=_SUBARRAY_TESTS,
        reference=reference,
        split=split,
        solution=solution.format(name=name, choice=choice),
        kind="subarray",
    )


def function_tasks(count: int, seed: int) -> tuple[FunctionTask, ...]:
    """Make `count` different tasks of the generated family; see `list_functions`."""
    return tuple(
        FunctionTask(
            id=function.id,
            prompt=function.text,
            func_name=FUNCTION,
            tests=ARGUMENTS,
            reference=function.reference,
            split=function.split,
            solution=function.solution,
            careless=function.careless,
            kind=function.kind,
        )
        for function in list_functions(count, seed)
    )


FUNCTION = "solve"
ARGUMENTS = ("[]", "[7]", "[4, -2, 9, 3, 8, 5]", "list(range(-20, 40))", "[12, 6, 2, 10, 1, 3, 3]")
"""Arguments with which each function of the family is tested, as expressions."""

_NUMBERS = range(2, 10)
_REDUCERS = {
    "list": ("the list of", "{items}"),
    "sum": ("the sum of", "sum({items})"),
    "count": ("the number of", "len({items})"),
    "largest": ("the largest of", "max({items}, default=0)"),
    "smallest": ("the smallest of", "min({items}, default=0)"),
}
_MAPS = {
    "items": ("the items", "x"),
    "squares": ("the squares of the items", "x * x"),
    **{f"times_{k}": (f"{k} times the items", f"x * {k}") for k in _NUMBERS},
    **{f"plus_{k}": (f"{k} plus the items", f"x + {k}") for k in _NUMBERS},
}
_FILTERS = {
    "all": ("", ""),
    **{f"above_{k}": (f" above {k}", f" if x > {k}") for k in _NUMBERS},
    **{f"below_{k}": (f" below {k}", f" if x < {k}") for k in _NUMBERS},
    **{f"multiples_{k}": (f" that {k} divides", f" if x % {k} == 0") for k in _NUMBERS},
}
_SPLITS = {0: "test", 1: "dev"}
"""Held-out split by the last digit of a function's place; the others are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFunction:
    """One function of the family.

    Attributes:
        id: Its three parts.
        kind: The reducer.
        split: `train`, `dev` or `test`.
        text: What is asked for.
        expression: The result, for an argument `xs`.
    """

    id: str
    kind: str
    split: str
    text: str
    expression: str

    @property
    def solution(self) -> str:
        """A whole right program."""
        return f"{_HEAD}return {self.expression}\n"

    @property
    def careless(self) -> str:
        """What a careless programmer writes: computes the result and forgets to return it."""
        return f"{_HEAD}{self.expression}\n"

    @property
    def reference(self) -> str:
        """An expression that gives the function."""
        return f"lambda xs: {self.expression}"


_HEAD = f"def {FUNCTION}(xs):\n    "


def list_functions(count: int, seed: int) -> tuple[ListFunction, ...]:
    """Make `count` different functions; the same seed gives the same ones first.

    A tenth is `dev`, another one `test`.
    """
    combinations = [
        names for names in product(_REDUCERS, _MAPS, _FILTERS) if names[0] != "count" or names[1] == "items"
    ]
    random.Random(f"code-functions:{seed}").shuffle(combinations)
    return tuple(
        _make_function(*names, _SPLITS.get(place % 10, "train")) for place, names in enumerate(combinations[:count])
    )


def _make_function(reducer: str, mapping: str, condition: str, split: str) -> ListFunction:
    (what, outer), (items, inner), (which, test) = _REDUCERS[reducer], _MAPS[mapping], _FILTERS[condition]
    return ListFunction(
        id=f"{reducer}-{mapping}-{condition}",
        kind=reducer,
        split=split,
        text=f"Write {FUNCTION}(xs) that returns {what} {items}{which}.",
        expression=outer.format(items=f"[{inner} for x in xs{test}]"),
    )
