"""Right solutions as models write them are rewarded: 24 replies, each with the tests of its problem."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures.plain_executions import PlainSandbox

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment

NAMED = "from collections import namedtuple\nP = namedtuple('P', 'x y')\n"
COLOR = "import enum\nclass Color(enum.IntEnum):\n    RED = 1\n"
LETTER = "import enum\nclass Letter(str, enum.Enum):\n    A = 'a'\n"
DATA = "from dataclasses import dataclass\n@dataclass\nclass D:\n    x: int\n    y: int = 2\n"
ADD = "def f(a, b):\n    return a + b"
SUM = "assert f(1, 2) == 3"


def block(*codes: str) -> str:
    return "\n\nAnd:\n\n".join(f"```python\n{code}\n```" for code in codes)


HONEST = {
    "a named tuple": (block(f"{NAMED}def f(a, b):\n    return P(a, b)"), "assert f(1, 2) == (1, 2)"),
    "a typed named tuple": (
        block("import typing\nclass P(typing.NamedTuple):\n    x: int\ndef f(a):\n    return P(a)"),
        "assert f(1) == (1,)",
    ),
    "named tuples in a list": (block(f"{NAMED}def f(a):\n    return [P(a, a)]"), "assert f(1) == [(1, 1)]"),
    "an IntEnum": (block(f"{COLOR}def f():\n    return Color.RED"), "assert f() == 1"),
    "a text Enum": (block(f"{LETTER}def f():\n    return Letter.A"), "assert f() == 'a'"),
    "a list of its own class": (block("class L(list): pass\ndef f(n):\n    return L([n])"), "assert f(1) == [1]"),
    "a dict of its own class": (block("class T(dict): pass\ndef f(n):\n    return T(a=n)"), "assert f(1) == {'a': 1}"),
    "keys": (block("def f(n):\n    return {n: 1}.keys()"), "assert f(1) == {1}"),
    "items": (block("def f(n):\n    return {n: 1}.items()"), "assert f(1) == {(1, 1)}"),
    "a Counter": (
        block("from collections import Counter\ndef f(s):\n    return Counter(s)"),
        "assert f('a') == {'a': 1}",
    ),
    "an OrderedDict": (
        block("from collections import OrderedDict\ndef f():\n    return OrderedDict(a=1)"),
        "assert f() == {'a': 1}",
    ),
    "a generator": (block("def f(n):\n    yield n"), "assert next(f(3)) == 3"),
    "a map in a list": (block("def f(xs):\n    return map(abs, xs)"), "assert list(f([-1])) == [1]"),
    "a dataclass": (block(f"{DATA}def f(a):\n    return D(a)"), "assert f(1) == D(1, 2)"),
    "a field of a dataclass": (block(f"{DATA}def f(a):\n    return D(a)"), "assert f(1).y == 2"),
    "a fence in a docstring": (
        block("def f(a, b):\n    '''Example:\n    ```python\n    f(1, 2)\n    ```\n    '''\n    return a + b"),
        SUM,
    ),
    "a fence in a text": (
        block("FENCE = '''\n```\n'''\ndef f(a, b):\n    return a + b if FENCE else 0"),
        SUM,
    ),
    "a second block that needs the first": (
        block("def g(a):\n    return a", "def f(a, b):\n    return g(a) + g(b)"),
        SUM,
    ),
    "a second block that corrects the first": (block("def f(a, b):\n    return a - b", ADD), SUM),
    "a block with an example": (block(ADD, "print(f(1, 2))"), SUM),
    "thoughts before": (f"<think>\n{block('def f(a, b): return 0')}\n</think>\n{block(ADD)}", SUM),
    "a block without its end": (f"```python\n{ADD}", SUM),
    "no block": (ADD, SUM),
    "a main guard": (block(f"{ADD}\nif __name__ == '__main__':\n    import sys\n    sys.exit(1)"), SUM),
}


async def test_every_honest_solution_is_rewarded(tmp_path: Path) -> None:
    rows = [
        {"task_id": 601 + number, "text": "Write f.", "code": "", "test_list": [test]}
        for number, (_, test) in enumerate(HONEST.values())
    ]
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    made = MbppEnvironment(MbppConfig(max_attempts=1), EnvironmentContext(snapshot=None, data=file, reward=None))
    failed = {}
    for task, (name, (reply, _)) in zip(made.tasks("train"), HONEST.items(), strict=True):
        session = await made.open(task, seed=1, sandbox=PlainSandbox())
        told = await session.reply(reply)
        if (await session.grade()).total != 1.0:
            failed[name] = told.text
    assert not failed and len(HONEST) == 24
