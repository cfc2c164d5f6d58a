"""HumanEval as published: asserts as tests, other checks as a whole, in a process where nothing of the solution is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import DataError
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.humaneval_problems import MOST_ROUNDS
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "humaneval" / "HumanEval.jsonl"

ASSERTS = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\ndef double(xs: List[int]) -> List[int]:\n    """Twice each."""\n',
    "entry_point": "double",
    "canonical_solution": "    return [2 * x for x in xs]\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate([31337]) == [62674], 'big'\n    assert True\n"
    "    assert candidate([]) == []\n",
}
LOOP = {
    "task_id": "HumanEval/1",
    "prompt": 'def shift(text):\n    return text[1:] + text[:1]\n\ndef back(text):\n    """Undoes shift."""\n',
    "entry_point": "back",
    "canonical_solution": "    return text[-1:] + text[:-1]\n",
    "test": "def check(candidate):\n    import random\n    for _ in range(30):\n"
    "        text = ''.join(random.choice('abc') for _ in range(random.randint(3, 9)))\n"
    "        assert candidate(shift(text)) == text\n",
}
ADAPTIVE = {
    "task_id": "HumanEval/2",
    "prompt": 'def step(n):\n    """One nearer to zero."""\n',
    "entry_point": "step",
    "canonical_solution": "    return n - 1 if n > 0 else n + (n < 0)\n",
    "test": "def check(candidate):\n    n = 9\n    while n:\n        m = candidate(n)\n        assert abs(m) < abs(n)\n"
    "        n = m\n",
}
ROWS = {row["task_id"]: row for row in (ASSERTS, LOOP, ADAPTIVE)}


def environment(path: Path, *rows: dict[str, Any]) -> MbppEnvironment:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MbppEnvironment(MbppConfig(max_attempts=1), EnvironmentContext(snapshot=None, data=path))


async def answer(made: MbppEnvironment, identity: str, code: str) -> str:
    (task,) = [task for task in made.tasks("test") if task.id == identity]
    session = await made.open(task, seed=0, sandbox=PlainSandbox())
    return (await session.reply(f"```python\n{code}\n```")).text


@pytest.mark.parametrize("identity", ROWS)
async def test_references_are_right_and_the_question_shows_no_test(identity: str, tmp_path: Path) -> None:
    made = environment(tmp_path / "HumanEval.jsonl", *ROWS.values())
    row = ROWS[identity]
    assert list(made.splits()) == ["test"] and [task.id for task in made.tasks("test")] == list(ROWS)
    (task,) = [task for task in made.tasks("test") if task.id == identity]
    assert row["prompt"].strip() in task.prompt and "assert" not in task.prompt and "check" not in task.prompt
    assert await answer(made, identity, f"{row['prompt']}{row['canonical_solution']}") == "All tests passed."


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("identity", "code", "said"),
    [
        ("HumanEval/0", "def double(xs):\n    return [x + x for x in xs]", "All tests passed."),
        ("HumanEval/0", "def double(xs: List[int]):\n    return xs", "1 of 2 tests passed.\n\nA hidden test"),
        ("HumanEval/1", "def back(text):\n    return shift(shift(text))", "A hidden test failed.\n\nReply"),
        ("HumanEval/1", "def back(text):\n    return {}[text]", "A hidden test failed."),
        ("HumanEval/1", "def forth(text):\n    return text", "A hidden test failed."),
        ("HumanEval/1", "def back(text:", "SyntaxError"),
        ("HumanEval/2", "def step(n):\n    return n // 2", "All tests passed."),
        ("HumanEval/2", "def step(n):\n    return 1 - n if n > 0 else -n - 1", "All tests passed."),
        ("HumanEval/2", "def step(n):\n    return n", "0 of 1 tests passed.\n\nA hidden test failed."),
        ("HumanEval/2", "import os\ndef step(n):\n    os._exit(0)", "0 of 1 tests passed."),
        ("HumanEval/1", "class Any(str):\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\n"
         "def back(text):\n    return Any(text)", "0 of 1 tests passed."),
        ("HumanEval/1", "def check(candidate):\n    pass\ndef back(text):\n    return text", "0 of 1 tests passed."),
        ("HumanEval/1", "import sys\ndef back(text):\n    frame = sys._getframe()\n    while frame:\n"
         "        frame.f_globals.update(check=lambda c: None, _replay=lambda *a: ['passed', ''])\n"
         "        frame = frame.f_back\n    return text", "0 of 1 tests passed."),
    ],
)  # fmt: skip
async def test_solutions_are_judged_by_their_values(identity: str, code: str, said: str, tmp_path: Path) -> None:
    told = await answer(environment(tmp_path / "HumanEval.jsonl", *ROWS.values()), identity, code)
    assert said in told and "31337" not in told, told


@pytest.mark.thorough
async def test_a_check_without_a_reference_asks_call_by_call_up_to_a_limit(tmp_path: Path) -> None:
    short = {name: value for name, value in ADAPTIVE.items() if name != "canonical_solution"}
    long = {**short, "task_id": "HumanEval/3", "test": short["test"].replace("n = 9", f"n = {2 * MOST_ROUNDS}")}
    made = environment(tmp_path / "test.jsonl", short, long)
    code = "def step(n):\n    return n - 1"
    assert await answer(made, "HumanEval/2", code) == "All tests passed."
    assert "0 of 1 tests passed." in await answer(made, "HumanEval/3", code)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task_id": ""}, "field 'task_id': must be a text"),
        ({"prompt": "def other(x):\n    '''No.'''\n"}, "field 'prompt': does not begin the function double"),
        ({"prompt": "def double(:"}, "field 'prompt': is not valid Python"),
        ({"entry_point": "a b"}, "field 'entry_point': must be the name"),
        ({"test": "def verify(candidate): pass"}, "field 'test': defines no check"),
        ({"test": "def check("}, "field 'test': is not valid Python"),
        ({"canonical_solution": 3}, "field 'canonical_solution': must be a text"),
        ({"prompt": "\x00"}, "field 'prompt': must be a text"),
    ],
)
def test_malformed_rows_are_named(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"row 2, {reason}"):
        environment(tmp_path / "HumanEval.jsonl", LOOP, {**ASSERTS, **changes})


@pytest.mark.parametrize("number", [0, 32, 38, 44, 50, 53, 151, 163])
async def test_published_references_are_right(number: int) -> None:
    if not PUBLISHED.is_file():
        pytest.skip("HumanEval is not beside this checkout")
    rows = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    made = MbppEnvironment(MbppConfig(), EnvironmentContext(snapshot=None, data=PUBLISHED))
    assert len(made.tasks("test")) == len(rows) == 164
    row = rows[number]
    told = await answer(made, row["task_id"], f"{row['prompt']}{row['canonical_solution']}")
    assert told == "All tests passed."
