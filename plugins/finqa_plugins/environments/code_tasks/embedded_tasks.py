"""The seed's two tasks, with its tests, and relatives of them that are held out."""

from __future__ import annotations

from finqa_plugins.environments.code_tasks.code_problems import CodeTask

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


def seed_tasks() -> tuple[CodeTask, ...]:
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


def _sorting(identity: str, name: str, order: str, reference: str, first: str, split: str = "train") -> CodeTask:
    return CodeTask(
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
) -> CodeTask:
    return CodeTask(
        id=identity,
        prompt=_SUBARRAY_PROMPT.format(name=name, extreme=extreme),
        func_name=name,
        tests=_SUBARRAY_TESTS,
        reference=reference,
        split=split,
        solution=solution.format(name=name, choice=choice),
        kind="subarray",
    )
