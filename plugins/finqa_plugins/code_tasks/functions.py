"""A generated family of simple functions on a list of integers: reduce what is left of a filter, after a map.

Phrases and numbers of held-out tasks occur in training, but never in the same combination.
"""

from __future__ import annotations

import random
from itertools import product

from finqa_plugins.code_tasks.tasks import CodeTask

FUNCTION = "solve"
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
_TESTS = ("[]", "[7]", "[4, -2, 9, 3, 8, 5]", "list(range(-20, 40))", "[12, 6, 2, 10, 1, 3, 3]")
_SPLITS = {0: "test", 1: "dev"}
"""By the last digit of a task's place; the others are trained on."""


def function_tasks(count: int, seed: int) -> tuple[CodeTask, ...]:
    """`count` different tasks; the same seed gives the same ones first. A tenth is `dev`, another one `test`.

    The careless version of each solution computes the result and forgets to return it.
    """
    combinations = [
        names for names in product(_REDUCERS, _MAPS, _FILTERS) if names[0] != "count" or names[1] == "items"
    ]
    random.Random(f"code-functions:{seed}").shuffle(combinations)
    return tuple(_task(*names, _SPLITS.get(place % 10, "train")) for place, names in enumerate(combinations[:count]))


def _task(reducer: str, mapping: str, condition: str, split: str) -> CodeTask:
    (what, outer), (items, inner), (which, test) = _REDUCERS[reducer], _MAPS[mapping], _FILTERS[condition]
    expression = outer.format(items=f"[{inner} for x in xs{test}]")
    head = f"def {FUNCTION}(xs):\n    "
    return CodeTask(
        id=f"{reducer}-{mapping}-{condition}",
        prompt=f"Write {FUNCTION}(xs) that returns {what} {items}{which}.",
        func_name=FUNCTION,
        tests=_TESTS,
        reference=f"lambda xs: {expression}",
        split=split,
        solution=f"{head}return {expression}\n",
        careless=f"{head}{expression}\n",
        kind=reducer,
    )
