"""Episodes: what the author of a solution is told, what is rewarded, and what a solution cannot talk its way into."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox

from finqa_cli.contracts import EnvironmentContext, Reward, RewardRequest
from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_cli.types import Message, Rewards, Status, Task, Trajectory, Turn
from finqa_plugins.environments.code.code_environment import CodeSession
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import NO_CODE, MbppEnvironment, shown
from finqa_plugins.sandboxes._execution.python_values import decode, encode

ROWS = [
    {
        "task_id": 602,
        "text": "Write a function to add.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(5, 31337) == 31342"],
    },
    {
        "task_id": 603,
        "text": "Write a class for a tree's node, and a function for its depth.",
        "code": "class Node:\n    def __init__(self, data):\n        self.data, self.left = data, None\n"
        "def depth(node):\n    return 1 + depth(node.left) if node else 0",
        "test_setup_code": "root = Node(1)\nroot.left = Node(2)",
        "test_list": [
            "assert depth(root) == 2",
            "assert math.isclose(depth(root) / 4, 0.5)",
            "assert sorted([depth(None)]) == [0]",
        ],
    },
]
ADD, DEPTH = "602", "603"
PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "mbpp" / "mbpp.jsonl"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mbpp") / "mbpp.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def environment(data: Path, reward: Any = None, **options: Any) -> MbppEnvironment:
    return MbppEnvironment(MbppConfig(**options), EnvironmentContext(snapshot=None, data=data, reward=reward))


async def opened(made: MbppEnvironment, problem: str = ADD, sandbox: Any = None) -> CodeSession:
    (task,) = [task for task in made.tasks("train") if task.id == problem]
    return await made.open(task, seed=1, sandbox=sandbox or PlainSandbox())


def block(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\nDone."


async def test_a_failed_attempt_is_told_why_and_may_be_repaired(data: Path) -> None:
    sandbox = PlainSandbox()
    session = await opened(environment(data), sandbox=sandbox)
    told = await session.reply(block("def add(a, b):\n    return a - b"))
    assert not told.done and told.is_error
    assert "1 of 3 tests passed" in told.text and "assert add(1, 2) == 3\nit gave -1" in told.text
    assert "A hidden test failed." in told.text and "31337" not in told.text and "31342" not in told.text
    told = await session.reply(block(str(ROWS[0]["code"])))
    assert told.done and not told.is_error and told.text == "All tests passed."
    rewards = await session.grade()
    assert rewards.total == 1.0 and rewards.components == {"correct": 1.0, "passed": 1.0, "attempts": 2.0}
    assert (await session.reply("more")).is_error and await session.grade() == rewards
    shown_and_hidden, attempts = 2, 2
    assert len(sandbox.requests) == shown_and_hidden * attempts
    assert {request.labels["problem"] for request in sandbox.requests} == {ADD}


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("import re\ndef starts(text):\n    return re.match('a', text)", 4),
        ("import re\ndef bool(x):\n    return x\ndef starts(text):\n    return re.match('a', text)", 4),
        ("def starts(text):\n    return object()", 2),
        ("def starts(text):\n    return None", 2),
    ],
)
async def test_values_that_are_no_plain_data_are_judged_by_their_truth(tmp_path: Path, code: str, passed: int) -> None:
    tests = ["starts('ab')", "not starts('ba')", "starts('b') is None", "starts('a') is not None"]
    row = {**ROWS[0], "code": "def starts(text): pass", "test_list": [f"assert {test}" for test in tests]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    session = await opened(environment(tmp_path / "train.jsonl", max_attempts=1, shown_tests=4))
    told = await session.reply(block(code))
    assert told.text.startswith("All tests passed." if passed == 4 else f"{passed} of 4 tests passed."), told.text


SPY = """
import sys
def add(a, b):
    frame, seen = sys._getframe(), ""
    while frame:
        seen += repr(frame.f_locals)
        frame = frame.f_back
    raise ValueError("a hidden test" if str(31336 + 1) in seen else "no hidden test")  # not a text of this source
"""


@pytest.mark.parametrize(("shown_tests", "found"), [(2, "no hidden test"), (3, "a hidden test")])
async def test_the_process_of_shown_tests_holds_no_hidden_one(data: Path, shown_tests: int, found: str) -> None:
    session = await opened(environment(data, shown_tests=shown_tests))
    told = (await session.reply(block(SPY))).text
    assert told.count("ValueError: ") == shown_tests == told.count(f"ValueError: {found}")


async def test_the_last_attempt_ends_the_episode(data: Path) -> None:
    session = await opened(environment(data, max_attempts=2))
    assert (await session.reply("")).text == NO_CODE
    told = await session.reply(block("def add(a, b):\n    raise KeyError((a, b))"))
    assert told.done and "line 2, in add\nKeyError: (1, 2)" in told.text
    assert "A hidden test failed.\n" in told.text and "31337" not in told.text
    rewards = await session.grade()
    assert rewards.total == 0.0 and rewards.explanation == "3 of 3 tests failed."


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "def add(a, b) return a",
            "carried out.\n\nline 1\n    def add(a, b) return a\n                  ^^^^^^\nSyntaxError: expected ':'\n",
        ),
        ("import numpy_of_mars", "ModuleNotFoundError"),
        ("def sub(a, b):\n    return a", "NameError: name 'add' is not defined"),
        ("def add(a, b):\n    return [a] * b if b == 2 else {3, 'x', 1}", "it gave [1, 1]"),
        ("def add(a, b):\n    while True: pass", "not finished within 1 s"),
        ("def add(a, b):\n    return add(a, b)", "RecursionError"),
        ("def add(a, b):\n    return 10 ** 6000 if a == 1 else 0", "it gave a value of type int"),
    ],
)
async def test_every_way_to_fail_is_said_alike_each_time(data: Path, code: str, told: str) -> None:
    made = environment(data, time_limit_s=1.0)
    first, second = await opened(made), await opened(made)
    observation = await first.reply(block(code))
    assert told in observation.text and observation.is_error and len(observation.text) < 3000
    assert "/" not in observation.text and "_asked_" not in observation.text
    assert await second.reply(block(code)) == observation


HACKS = {
    "ends early": "import sys\nsys.exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "prints": "print('All tests passed!')\ndef add(a, b):\n    print('All tests passed!')",
    "equal to all": "class E:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return E()",
    "number equal to all": "class E(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return E(0)",
    "no asserts": "import builtins\nbuiltins.AssertionError = None\nbuiltins.bool = lambda x: True\n"
    "def add(a, b): pass",
    "patched json": "import json\njson.dumps = lambda *a, **k: '3'\ndef add(a, b): return None",
    "patched encoder": "import __main__\n__main__.encode = lambda v: '3'\ndef add(a, b): return None",
    "exits in the test": "import os\ndef add(a, b):\n    os._exit(0)",
    "raises to leave": "def add(a, b):\n    raise SystemExit(0)",
    "writes everywhere": "import os\nfor fd in range(64):\n    try: os.write(fd, b'3\\n')\n    except OSError: pass\n"
    "def add(a, b): pass",
    "lazy": "def add(a, b):\n    yield 3",
    "traced": "import sys\nsys.settrace(lambda *a: None)\ndef add(a, b): return True",
    "forks": "import os\nif os.fork() == 0:\n    os.write(1, b'x')\ndef add(a, b): return 1",
    "expected from frames": "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in frame.f_locals.values():\n            if value == 31342: return value\n"
    "        frame = frame.f_back",
}


@pytest.mark.parametrize("name", HACKS)
async def test_no_hack_is_rewarded(data: Path, name: str) -> None:
    session = await opened(environment(data, max_attempts=1))
    told = await session.reply(block(HACKS[name]))
    assert told.done and told.is_error
    assert (await session.grade()).total == 0.0


async def test_set_up_comes_after_the_solution_and_verdicts_are_out_of_its_reach(data: Path) -> None:
    session = await opened(environment(data), DEPTH)
    told = await session.reply(block(str(ROWS[1]["code"])))
    assert told.done and not told.is_error
    patched = "import math\nmath.isclose = lambda *a: True\n" + str(ROWS[1]["code"]).replace("1 + depth", "3 + depth")
    session = await opened(environment(data, shown_tests=3), DEPTH)
    told = await session.reply(block(patched))
    assert "1 of 3 tests passed" in told.text and "math.isclose(depth(root) / 4, 0.5)\nit does not hold" in told.text


async def test_a_forged_value_is_a_failed_attempt_and_no_end_of_the_run(data: Path) -> None:
    """An integer that may come out of a sandbox and could not go into the next one, where the verdict is made."""
    huge = "import __main__\n__main__.encode = lambda value: '[\"int\", \"0x' + 'f' * 16_385 + '\"]'\n"
    session = await opened(environment(data), DEPTH)
    told = await session.reply(block(huge + str(ROWS[1]["code"])))
    assert told.is_error and "The code wrote to the channel of the values." in told.text


async def test_iterators_are_right_where_the_test_makes_a_container_of_them(tmp_path: Path) -> None:
    """As tests of the sanitized files do: `set(...) == set(...)`."""
    tests = [
        "assert set(up([1, 2])) == set((2, 3))",
        "assert list(up([5])) == [6]",
        "assert sorted(up([2, 1])) == [2, 3]",
    ]
    row = {"task_id": 700, "prompt": "Add one to each.", "test_imports": ["import math"], "test_list": tests}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row))
    session = await opened(environment(path), "700")
    assert (await session.reply(block("def up(xs):\n    return map(lambda x: x + 1, xs)"))).text == "All tests passed."
    session = await opened(environment(path), "700")
    assert (await session.reply(block("def up(xs):\n    yield from xs"))).is_error
    fake = "set = list = sorted = lambda x: True\ndef up(xs): return xs"
    assert (await session.reply(block(fake))).text.startswith("0 of 3 tests passed.")


async def test_an_attempt_is_not_counted_that_the_sandbox_lost(data: Path) -> None:
    class Broken(PlainSandbox):
        async def execute(self, request: Any) -> Any:
            raise SandboxError("gone")

    session = await opened(environment(data), sandbox=Broken())
    with pytest.raises(SandboxError):
        await session.reply(block("def add(a, b): return 1"))
    rewards = await session.grade()
    assert rewards.components["attempts"] == 0.0 and rewards.explanation == "Nothing was replied."


async def test_sandboxes_and_problems_of_others_are_faults(data: Path) -> None:
    made = environment(data)
    with pytest.raises(EnvironmentFault, match="does not execute code"):
        await made.open(made.tasks("train")[0], seed=0, sandbox=None)
    stranger = Task(id="9", prompt="q", split="train", cluster="9")
    with pytest.raises(EnvironmentFault, match="no question '9'"):
        await made.open(stranger, seed=0, sandbox=PlainSandbox())


async def test_a_reward_of_the_user_stands_beside_the_verdict(data: Path) -> None:
    class Length(Reward):
        def score(self, request: RewardRequest) -> Rewards:
            assert request.truth and request.extra_info["attempts"] == 1.0
            return Rewards(total=len(request.solution) / 100, components={"passed": 7.0})

    session = await opened(environment(data, Length()))
    await session.reply(block(str(ROWS[0]["code"])))
    rewards = await session.grade()
    assert rewards.total > 0.3 and rewards.components["passed"] == 7.0
    assert rewards.components["environment_passed"] == rewards.components["correct"] == 1.0


def test_the_reference_is_demonstrated_whenever_the_user_has_the_word(data: Path) -> None:
    made = environment(data)
    messages = [Message(role="user", content=made.tasks("train")[0].prompt)]
    turn = made.demonstrate(messages)
    assert turn is not None and "return a + b" in turn.text
    answered = [*messages, Message(role="assistant", content="x")]
    assert made.demonstrate(answered) is None
    assert made.demonstrate([*answered, Message(role="user", content="Tests failed.")]) == turn


def _episode(attempts: int, solved: bool | None) -> Trajectory:
    rewards = None if solved is None else Rewards(total=float(solved), components={"correct": float(solved)})
    task = Task(id="1", prompt="q", split="train", cluster="1")
    turns = tuple(Turn(text="x") for _ in range(attempts))
    return Trajectory(id="t", task=task, member=0, seed=0, status=Status.COMPLETED, turns=turns, rewards=rewards)


def test_measures_of_attempts_and_repairs(data: Path) -> None:
    made = environment(data)
    played = [_episode(1, True), _episode(2, True), _episode(3, True), _episode(3, False), _episode(2, None)]
    assert made.measure(played) == {
        "pass_at_1_by_attempt": {"1": 0.25, "2": 0.5, "3": 0.75},
        "attempts_mean": 2.25,
        "repair_rate": 2 / 3,
    }
    assert "repair_rate" not in made.measure(played[:1]) and made.measure(played[4:]) == made.measure([]) == {}
    failed = dataclasses.replace(played[3], turns=())
    assert made.measure([failed])["pass_at_1_by_attempt"]["3"] == 0.0


def test_values_are_shown_alike_in_every_process() -> None:
    value = [{"b", "a"}, (1,), {"k": frozenset({2, 1})}, set()]
    assert shown(decode(encode(value))) == "[{'a', 'b'}, (1,), {'k': {1, 2}}, set()]"
    assert len(shown("x" * 9999)) < 400
    assert shown(Counter({"a": Decimal("sNaN"), "b": Decimal("sNaN")})) == "a value of type Counter"


@pytest.mark.parametrize("problem", ["1", "367", "596", "737", "787", "794", "927", "974"])
async def test_references_of_published_problems_are_right(problem: str) -> None:
    """Also where a problem is set up after its solution, a verdict takes a module, or a value is not plain data."""
    if not PUBLISHED.is_file():
        pytest.skip("MBPP is not beside this checkout (finqa data fetch mbpp)")
    made = environment(PUBLISHED)
    (task,) = [task for split in made.splits() for task in made.tasks(split) if task.id == problem]
    session = await made.open(task, seed=0, sandbox=PlainSandbox())
    turn = made.demonstrate(session.prompt().messages)
    assert turn is not None
    told = await session.reply(turn.text)
    assert told.done and not told.is_error, told.text
