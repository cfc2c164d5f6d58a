"""The generated family of functions on lists, used by `code` and `mbpp`.

A function of the family filters a list, maps the remaining items and reduces them. Phrases and numbers of held-out
functions occur in training, but never in the same combination.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

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
"""Held-out split by the last digit of a function's position; the other functions are used for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFunction:
    """One function of the family.

    Attributes:
        id: Names of reducer, map and filter, joined by `-`.
        kind: The reducer.
        split: `train`, `dev` or `test`.
        text: The task in words.
        expression: Expression of the result for an argument `xs`.
    """

    id: str
    kind: str
    split: str
    text: str
    expression: str

    @property
    def solution(self) -> str:
        """A complete correct program."""
        return f"{_HEAD}return {self.expression}\n"

    @property
    def careless(self) -> str:
        """What a careless programmer writes: computes the result and forgets to return it."""
        return f"{_HEAD}{self.expression}\n"

    @property
    def reference(self) -> str:
        """An expression whose value is the function."""
        return f"lambda xs: {self.expression}"


_HEAD = f"def {FUNCTION}(xs):\n    "


def list_functions(count: int, seed: int) -> tuple[ListFunction, ...]:
    """Make `count` different functions; with the same seed, a smaller count gives the first of them.

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
