from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_plugins.sandboxes._execution.bans import UnreadableError, check_pattern, violations

SEED = ("sorted(", ".sort(", "heapq", "import ", "__import__")


@pytest.mark.parametrize(
    "code",
    [
        "# no sorted(, no .sort(, no heapq, no import here",
        "'''sorted( .sort( heapq import __import__'''",
        "print('import os; sorted(x)')",
        "unsorted(x)\nmy_sort = resort(x)\nheapqueue = important = 1",
        "def sort_numbers(xs):\n    return [min(xs)]",
        "self.sorting = 1",
        "class A:\n    def __init__(self): self.x = 1\n    def __lt__(self, other): return self.x < other.x",
        "xs = sum([x.__len__() for x in []])",
        "f'{1 + 1} sorted('",
        "if __name__ == '__main__':\n    pass",
        "def sort_numbers(input):\n    return list(input)",
    ],
)
def test_words_that_only_look_like_it_are_none(code: str) -> None:
    assert violations(code, SEED) == ()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("sorted(x)", "sorted("),
        ("s = sorted", "sorted("),
        ("list(map(sorted, x))", "sorted("),
        ("@sorted\ndef f(): ...", "sorted("),
        ("f'{sorted(x)}'", "sorted("),
        ("\u017forted(x)", "sorted("),
        ("x.sort()", ".sort("),
        ("f = list.sort", ".sort("),
        ("match x:\n    case list(sort=f): f()", ".sort("),
        ("import math", "import"),
        ("from heapq import heappush as h", "heapq"),
        ("__import__('heapq')", "__import__"),
        ("getattr(x, 'so' 'rt')()", "getattr"),
        ("g = getattr", "getattr"),
        ("globals()['x']", "globals"),
        ("vars(x)", "vars"),
        ("__builtins__['sorted']", "__builtins__"),
        ("exec('x')", "exec"),
        ("eval('x')", "eval"),
        ("compile('x', '', 'eval')", "compile"),
        ("().__class__", "__class__"),
        ("f.__globals__", "__globals__"),
        ("print.__self__", "__self__"),
        ("x.gi_frame.f_builtins", "f_builtins"),
        ("object.__subclasses__()", "__subclasses__"),
        ("x.__getattribute__('sort')", "__getattribute__"),
        ("sorted |= mine", "sorted("),
        ("def f():\n    global sorted\n    sorted -= mine", "sorted("),
        (
            "P = type('P', (list,), {'__match_' 'args__': ('so' 'rt',)})\nmatch P(x):\n    case P(f): f()",
            "a positional",
        ),
    ],
)
def test_uses_aliases_and_detours_are_found(code: str, what: str) -> None:
    assert any(found.startswith((f"{what} (line ", f"{what} class")) for found in violations(code, SEED))


@pytest.mark.parametrize(
    "code",
    [
        "from builtins import sorted as s",
        "import builtins",
        "import os",
        "import collections as c\nc._sys.modules",
        "import typing\ntyping.sys",
        "from typing import sys",
        "from enum import bltns",
        "from collections import *",
        "from . import x",
        "import operator",
        "import typing\ntyping.get_type_hints(x)",
        "from typing import ForwardRef",
        "import string\nstring.Formatter().get_field('0.so' 'rt', [x], {})",
        "import dataclasses\ndataclasses._create_fn('f', ['x'], ['return so' 'rted(x)'])",
        "import dataclasses\nP = dataclasses.make_dataclass('P', ['so' 'rt'], bases=(list,), init=False)",
        "from dataclasses import astuple",
        "from dataclasses import dataclass\n@dataclass\nclass P(list):\n    sort: object\nP() == P(mine)",
        "from dataclasses import dataclass\n@dataclass\n@swapped\nclass P:\n    x: int",
        "from dataclasses import dataclass\ndataclass(type('P', (list,), {}))",
        "from dataclasses import dataclass as d",
        "import enum\nenum.Enum._convert_('E', 'builtins', lambda name: name == 'so' 'rted')",
        "from enum import Enum\nEnum._convert_('E', 'builtins', lambda name: name == 'so' 'rted')",
        "import re\nre.enum",
        "import functools\nfunctools.update_wrapper(mine, x, assigned=('so' 'rt',), updated=())",
        "from functools import wraps\nwraps(list)(mine)",
        "import functools\n@functools.singledispatch\ndef f(x): ...\n@f.register\ndef _(x: 'mine(sorted)'): ...",
        "import typing\nclass R(typing.contextlib.redirect_stdout):\n    _stream = 'modules'",
        "import typing\ntyping.types.CodeType",
        "import typing\nclass W(metaclass=M): ...\ntyping.warnings.Warning = W  # its __subclasscheck__ is given it\n"
        "typing.warnings._getcategory('builtins.so' 'rted')",
        "import typing\ntyping._lazy_load_getattr_static()(list, 'so' 'rt')",
        "from typing import get_args",
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: 'so' 'rted'\n"
        "P.__annotations__['x']._evaluate({}, {}, frozenset())",
        "import json.tool\njson.tool.argparse",
    ],
)
def test_modules_that_reach_everything_are_detours_of_any_ban(code: str) -> None:
    assert violations(code, ["sorted("])
    assert violations(code, []) == ()


def test_harmless_imports_are_allowed_where_imports_are_not_banned() -> None:
    code = "from __future__ import annotations\nimport math\nfrom collections import deque"
    parts = "from dataclasses import dataclass, field\n@dataclass(frozen=True)\nclass P:\n    x: int = field(default=1)"
    types = (
        "from typing import List, NamedTuple, Optional\nfrom collections.abc import Iterable\ndef f(x: List[int]): ..."
    )
    assert violations(code, ["sorted("]) == violations(parts, ["sorted("]) == violations(types, ["sorted("]) == ()


@pytest.mark.parametrize(
    ("pattern", "code", "found"),
    [
        ("[::-1]", "y = x[ : : -1]", True),
        ("[::-1]", "y = x[::1]  # [::-1]", False),
        ("[::-1]", "f'{x[::-1]}'", True),
        ("[::-1]", "# a comment\ry = x[::-1]", True),
        ("math.factorial(", "math.\uff46actorial(3)", True),
        ("**", "x ** 2", True),
        ("**", "x * 2", False),
        ("while ", "while True:\n    pass", True),
        ("for ", "[x for x in y]", True),
        ("for ", "before = 1", False),
        ("lambda", "f = lambda: 1", True),
        ("math.factorial(", "from math import factorial", True),
        ("math.factorial(", "math.factorial(3)", True),
        ("math.factorial(", "import math as m\nm.factorial(3)", True),
        ("math.factorial(", "import math\nf = [math][0].factorial", True),
        ("math.factorial(", "mine.factorial(3)", False),
        ("string.join(", "import string\n', '.join(x)", False),
        ("list.sort(", "x.sort()", True),
        ("str.join(", "','.join(x)", True),
        ("*", "x *= 2", True),
        ("*", "x.__mul__(2)", True),
        ("*", "int.__rmul__(2, x)", True),
        ("*", "x **= 2", False),
        ("<", "x.__lt__(2)", True),
        ("<", "x <= 2", False),
    ],
)
def test_other_patterns_are_tokens(pattern: str, code: str, found: bool) -> None:
    assert bool(violations(code, [pattern])) is found


def test_violations_name_lines_in_order_and_once() -> None:
    assert violations("a = 1\nimport os\nsorted(sorted(x))", SEED) == (
        "import (line 2)",
        "os (line 2)",
        "sorted( (line 3)",
    )


@pytest.mark.parametrize("code", ["def f(:", "x = 'a", "\x00", "\ud800", "(" * 5000, "x" * 70_000, "-" * 60_000 + "1"])
def test_what_is_no_python_is_unreadable(code: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        violations(code, SEED)
    assert "\n" not in str(raised.value)


def test_numbers_that_have_no_decimal_form_are_unreadable() -> None:
    with pytest.raises(UnreadableError):
        violations(f"f'{{0x{'f' * 9000}}}'", ["while "])


def test_patterns_that_say_nothing_are_refused() -> None:
    assert check_pattern("  ") and check_pattern("") and check_pattern("# x")
    assert not any(check_pattern(pattern) for pattern in (*SEED, "[::-1]", "(", "**"))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.lists(st.text(max_size=8), max_size=3))
def test_any_text_and_any_ban_give_an_answer(code: str, banned: list[str]) -> None:
    with contextlib.suppress(UnreadableError):
        assert all(isinstance(found, str) for found in violations(code, banned))
