from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fixtures.toy_environment import ToyChatEngine

from finqa_cli.contracts import Environment, EnvironmentContext, Session, TextSession
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, FinqaError
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import AssistantTurn, Message, Sampling, Status, ToolCall, Trajectory

INVENTORY = '''
class Inventory:
    """You work in a warehouse."""

    @staticmethod
    def tasks(size: int = 40):
        for number in range(size):
            yield {"prompt": f"How many bolts are on shelf {number}?", "stock": {"bolts": number}}

    def __init__(self, stock):
        self.stock, self.answered = stock, None

    def count(self, item: str, shelf: int = 0) -> int:
        """Number of an item.

        Args:
            item: Name of the item,
                in lower case.
            shelf: Where it lies.
        """
        return self.stock[item]

    def submit(self, answer: int) -> None:
        self.answered, self.done = answer, True

    def reward(self):
        return self.answered == self.stock["bolts"]

    def expert(self):
        yield "submit", {"answer": (yield "count", {"item": "bolts"})}
'''

Written = Callable[..., Environment]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Makes the environment of a file of this source."""

    def write(source: str, **options: Any) -> Environment:
        file = tmp_path / f"own_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(dedent(source))
        context = EnvironmentContext(snapshot=None)
        environment: Environment = registry().create("environment", str(file), options, context)
        return environment

    return write


def line_of(text: str, source: str) -> int:
    return 1 + next(number for number, line in enumerate(dedent(source).splitlines()) if text in line)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


async def opened(environment: Environment, number: int = 0) -> Session | TextSession:
    return await environment.open(environment.tasks("train")[number], seed=7, sandbox=None)


async def demonstrated(environment: Environment, number: int = 0) -> Trajectory:
    class Expert(ToyChatEngine):
        async def respond(self, request: Any) -> AssistantTurn:
            turn = environment.demonstrate_task(request.task, request.messages)
            assert turn is not None
            return turn

    player = Player(environment, Pool(), Expert(), None, limits=Limits(), sampling=Sampling(), max_retries=0)
    task = environment.tasks("train")[number]
    return await player.play(Attempt(id="t", task=task, member=0, seed=0), Seat(nullcontext))


def test_tools_are_public_methods_with_schemas_from_their_signatures(written: Written) -> None:
    environment = written(INVENTORY)
    prompt = environment.opening(environment.tasks("train")[0])
    assert prompt is not None
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[0].content == "You work in a warehouse."
    count, submit = prompt.tools
    assert (count.name, count.description, submit.description) == ("count", "Number of an item.", "submit")
    assert count.parameters == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "Name of the item, in lower case."},
            "shelf": {"type": "integer", "default": 0, "description": "Where it lies."},
        },
        "required": ["item"],
        "additionalProperties": False,
    }


def test_tasks_without_splits_are_divided_and_stay_where_they_are(written: Written) -> None:
    environment, again = written(INVENTORY), written(INVENTORY)
    sizes = {split: len(environment.tasks(split)) for split in environment.splits()}
    assert sizes == {"train": 28, "dev": 6, "test": 6} and list(sizes) == ["train", "dev", "test"]
    assert [task.id for task in environment.tasks("validation")] == [task.id for task in again.tasks("dev")]
    with pytest.raises(DataError, match="has no split 'odd'"):
        environment.tasks("odd")
    smaller = written(INVENTORY, arguments={"size": 3})
    assert {split: len(smaller.tasks(split)) for split in smaller.splits()} == {
        "train": 1,
        "dev": 1,
        "test": 1,
    }
    digests = {environment.data().digest, again.data().digest}
    assert len(digests) == 1 and smaller.data().digest not in digests


async def test_an_expert_gets_the_replies_and_solves_every_task(written: Written) -> None:
    environment = written(INVENTORY)
    trajectory = await demonstrated(environment, 3)
    assert trajectory.reward == 1.0
    assert [turn.observation.text for turn in trajectory.turns if turn.observation][1:] == ["ok"]
    assert environment.demonstrate([Message(role="user", content="another question")]) is None
    assert environment.demonstrate(trajectory.messages) == environment.demonstrate_task(
        trajectory.task.id, trajectory.messages
    )


async def test_tasks_with_the_same_prompt_have_experts_of_their_own(written: Written) -> None:
    same = INVENTORY.replace("on shelf {number}?", "here?").replace(
        'yield "submit", {"answer": (yield "count", {"item": "bolts"})}',
        'yield "submit", {"answer": self.stock["bolts"]}',
    )
    environment = written(same)
    assert [(await demonstrated(environment, number)).reward for number in range(10)] == [1.0] * 10
    careless = written(same, careless=0.5, tool_exceptions="model")
    rewards = [(await demonstrated(careless, number)).reward for number in range(20)]
    assert 3 <= rewards.count(1.0) <= 17 and rewards == [(await demonstrated(careless, n)).reward for n in range(20)]


async def test_wrong_calls_are_answered_and_the_end_is_the_end(written: Written) -> None:
    session = await opened(written(INVENTORY))
    assert isinstance(session, Session)
    for wrong, reason in [
        (call("steal"), "there is no tool 'steal'. Tools: count, submit"),
        (call("count"), "argument item: Field required"),
        (call("count", item="bolts", shelf="top"), "argument shelf: Input should be a valid integer"),
        (call("count", item="bolts", self=1), "argument self: Extra inputs are not permitted"),
        (call("count", item=["\ud800"]), "argument item"),
    ]:
        observation = await session.step(wrong)
        assert observation.is_error and not observation.done and reason in observation.text
    assert (await session.step(call("submit", answer="999"))).done
    assert (await session.step(call("submit", answer=0))).is_error
    rewards = await session.grade()
    assert (rewards.total, rewards.explanation) == (0.0, "")
    await session.close()
    await session.close()


async def test_an_exception_in_a_tool_is_a_fault_or_a_message_for_the_model(written: Written) -> None:
    session = await opened(written(INVENTORY))
    assert isinstance(session, Session)
    line = line_of("return self.stock[item]", INVENTORY)
    with pytest.raises(EnvironmentFault, match=rf"count of .*own_0\.py raised KeyError: 'nuts' \(.*own_0\.py:{line}\)"):
        await session.step(call("count", item="nuts"))
    shown = await opened(written(INVENTORY, tool_exceptions="model"))
    assert isinstance(shown, Session)
    observation = await shown.step(call("count", item="nuts"))
    assert (observation.text, observation.is_error, observation.done) == ("Error: KeyError: 'nuts'", True, False)


async def test_functions_without_a_class_get_the_values_of_the_task(written: Written) -> None:
    environment = written(
        '''
        """Answer with a number."""

        def tasks():
            return [{"prompt": f"What is {n} + {n}?", "truth": 2 * n} for n in range(20)]

        def double(truth: int, number: int) -> int:
            return number * 2 + 0 * truth

        def reward(answer, truth):
            return {"correct": answer == str(truth), "short": len(answer) < 3}

        def expert(truth):
            return [("double", {"number": truth // 2}), f"<think>easy</think>\\n {truth}"]
        '''
    )
    (tool,) = _tools(environment)
    assert list(tool.parameters["properties"]) == ["number"]
    trajectory = await demonstrated(environment, 2)
    assert trajectory.rewards is not None and trajectory.reward == 2.0
    assert dict(trajectory.rewards.components) == {"correct": 1.0, "short": 1.0}
    assert [turn.tool_call is None for turn in trajectory.turns] == [False, True]


def _tools(environment: Environment) -> Any:
    prompt = environment.opening(environment.tasks("train")[0])
    assert prompt is not None
    return prompt.tools


ASYNC = """
import asyncio
import sqlite3

class Shop:
    reward = 0.0

    @staticmethod
    async def tasks():
        for number in range(10):
            yield {"prompt": [{"role": "system", "content": "Short."}, {"role": "user", "content": f"Task {number}"}]}

    def __init__(self, task, seed):
        self.seed, self.table = seed, sqlite3.connect(":memory:")

    def reset(self):
        return f"The shop opens with seed {self.seed}."

    async def buy(self, what: str) -> dict[str, int]:
        await asyncio.sleep(0)
        self.reward += 0.5
        return {what: 1}

    def look(self) -> str:
        return str(self.table.execute("select 40 + 2").fetchone()[0])

    def answer(self, text):
        return "Say bye." if text != "bye" else None

    def close(self):
        self.table.close()
"""


async def test_async_tools_rewards_per_step_and_answers_that_continue(written: Written) -> None:
    environment = written(ASYNC)
    assert environment.opening(environment.tasks("train")[0]) is None
    session = await opened(environment)
    assert isinstance(session, Session) and session.takes_text
    assert [message.content for message in session.prompt().messages][1:] == [
        f"{environment.tasks('train')[0].prompt}\n\nThe shop opens with seed 7."
    ]
    assert json.loads((await session.step(call("buy", what="bolts"))).text) == {"bolts": 1}
    assert (await session.step(call("look"))).text == "42"  # a connection of SQLite serves its own thread only
    await session.step(call("buy", what="nuts"))
    first, last = await session.reply("hello"), await session.reply("bye")
    assert (first.text, first.done, last.done) == ("Say bye.", False, True)
    assert (await session.grade()).total == 1.0
    await session.close()


@pytest.mark.parametrize("reward", ["numpy.float32(0.5)", "numpy.bool_(True) / 2", "{'a': numpy.float64(0.5)}", "0.5"])
async def test_numbers_of_libraries_are_rewards(written: Written, reward: str) -> None:
    environment = written(
        INVENTORY.replace('return self.answered == self.stock["bolts"]', f"import numpy; return {reward}")
    )
    assert (await demonstrated(environment)).reward == 0.5


async def test_plain_words_end_an_episode_and_unreadable_calls_do_not(written: Written) -> None:
    environment = written(ASYNC)
    said = [
        AssistantTurn(text="<tool_call>{", parse_error="not closed"),
        AssistantTurn(text="bye", parse_error="No tool call found.", no_call=True),
    ]
    player = Player(
        environment, Pool(), ToyChatEngine(*said), None, limits=Limits(), sampling=Sampling(), max_retries=0
    )
    attempt = Attempt(id="t", task=environment.tasks("train")[0], member=0, seed=0)
    trajectory = await player.play(attempt, Seat(nullcontext))
    assert [turn.parse_error for turn in trajectory.turns] == ["not closed", ""]
    assert (trajectory.status.value, trajectory.reward) == ("completed", 0.0)


async def test_a_tool_that_hangs_is_a_fault_and_stops_no_other_episode(written: Written) -> None:
    source = INVENTORY.replace("return self.stock[item]", "import time; time.sleep(30)")
    environment = written(source, call_timeout_s=0.2)
    first, second = await opened(environment), await opened(environment)
    assert isinstance(first, Session) and isinstance(second, Session)
    hanging = asyncio.create_task(first.step(call("count", item="bolts")))
    await asyncio.sleep(0.05)
    assert (await second.step(call("submit", answer=1))).done and not hanging.done()
    with pytest.raises(EnvironmentFault, match=r"did not return within 0\.2 s"):
        await hanging
    await first.close()


MISTAKES = {
    "class Inventory(:\n    pass": "SyntaxError",
    "import a_package_that_nobody_has": "ModuleNotFoundError",
    "raise SystemExit(3)": "SystemExit: 3",
    "x = 1": "has no tasks and no reward",
    INVENTORY.replace("def tasks", "def task"): "has no tasks",
    INVENTORY.replace("item: str", "item"): "its parameter 'item' has no type hint",
    INVENTORY.replace("item: str", "*item: str"): "cannot be passed by name",
    INVENTORY.replace("item: str", "item: 'Missing'"): "its type hints cannot be read",
    INVENTORY.replace("item: str", "item: object()"): "cannot be converted to a JSON schema",
    INVENTORY.replace("item: str", "item: 'sqlite3.Connection'").replace(
        "class Inv", "import sqlite3\nclass Inv"
    ): "cannot be converted to a JSON schema",
    INVENTORY + INVENTORY.replace("Inventory", "Other"): "has several environments: Inventory, Other",
    INVENTORY.replace('yield {"prompt"', 'yield {"question"'): "Task 1 of .* has no prompt",
    INVENTORY.replace('yield {"prompt"', 'yield 1, {"prompt"'): "Task 1 of .* is a tuple, not a mapping",
    INVENTORY.replace('{"prompt"', '{"id": 1, "prompt"'): "id '1' belongs to two tasks",
    INVENTORY.replace('{"prompt"', '{"id": [number], "prompt"'): "id is a list",
    INVENTORY.replace('{"prompt"', '{"split": "dev" if number else None, "prompt"'): "has no split, but 39 others",
    INVENTORY.replace("(self, stock)", "(self, stock, price)"): r"constructor .* needs 'price' \(.*own_0.py:10\), but "
    "task '00001' has only: prompt, stock",
    INVENTORY.replace("expert(self)", "expert(self, *, price)"): r"expert\(\) .* needs 'price' \(.*own_0.py:29\)",
    INVENTORY.replace("range(size)", "range(0)"): "no tasks",
    INVENTORY.replace("for number", "raise KeyError('stock')\n        for number"): "tasks.* raised KeyError: 'stock'",
}


@pytest.mark.parametrize(("source", "reason"), MISTAKES.items(), ids=MISTAKES.values())
def test_mistakes_in_a_file_are_found_before_anything_starts(
    written: Written, source: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=reason) as caught:
        written(source)
    error = caught.value
    assert "own_0.py" in error.message and error.remedy and "bug in finqa" not in error.message


EPISODES = [
    ("self.stock, self.answered = stock, None", "raise KeyError('stock')", "raised KeyError: 'stock'", "raise Key"),
    ("return self.answered ==", "return None and", "reward of .* is None, not a number", "def reward"),
    ("return self.answered ==", "return 1 / 0 ==", "raised ZeroDivisionError: division by zero", "1 / 0"),
    ('yield "submit"', 'yield "sbmit"', "calls 'sbmit'; the tools are count, submit", "def expert"),
    (
        'yield "submit"',
        'yield "answer"',
        "calls 'answer'; the tools are count, submit; 'answer' is a reserved",
        "def exp",
    ),
    ('yield "submit", ', 'yield 7; yield "submit", ', "yields 7, not a text or a pair", "def expert"),
    ('yield "submit", ', 'raise KeyError("gone"); yield "submit", ', "raised KeyError: 'gone'", '"gone"'),
]


@pytest.mark.parametrize(("sound", "wrong", "reason", "where"), EPISODES)
async def test_mistakes_in_an_episode_name_their_line(
    written: Written, sound: str, wrong: str, reason: str, where: str
) -> None:
    assert sound in INVENTORY
    source = INVENTORY.replace(sound, wrong)
    trajectory = await demonstrated(written(source))
    assert trajectory.status.value == "environment_error" and trajectory.rewards is None
    assert "bug in finqa" not in trajectory.error
    assert re.search(rf"{reason}.*own_0\.py:{line_of(where, source)}\)", trajectory.error), trajectory.error


async def test_the_documented_environment_is_short_and_its_expert_is_right(written: Written) -> None:
    page = (Path(__file__).parents[4] / "docs" / "own-environments.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    assert len(source.splitlines()) <= 30
    environment = written(source)
    assert [(await demonstrated(environment, number)).reward for number in range(20)] == [1.0] * 20


def test_what_an_own_environment_does_not_take_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "inventory.py"
    file.write_text(INVENTORY)
    create = registry().create
    with pytest.raises(ConfigError, match="There is no file"):
        create("environment", str(tmp_path / "other.py"), {}, EnvironmentContext(snapshot=None))
    with pytest.raises(ConfigError, match="does not accept data"):
        create("environment", str(file), {}, EnvironmentContext(snapshot=None, data=tmp_path))
    with pytest.raises(ConfigError, match="has no class or function 'Shop'; it has: Inventory"):
        create("environment", str(file), {"attribute": "Shop"}, EnvironmentContext(snapshot=None))
    with pytest.raises(FinqaError, match="no option 'colour'"):
        create("environment", str(file), {"colour": 1}, EnvironmentContext(snapshot=None))


SEVERAL = '''
class Stock:
    """Look items up."""

    several_calls = True
    reward = 0

    @staticmethod
    def tasks():
        for number in range(4):
            yield {"prompt": f"How many? {number}", "stock": {"bolts": number, "nuts": 2}}

    def __init__(self, stock):
        self.stock = stock

    def count(self, item: str) -> int:
        """Number of an item."""
        return self.stock[item]

    def submit(self, answer: int) -> None:
        """Answer with the sum."""
        self.reward, self.done = answer == sum(self.stock.values()), True

    def expert(self):
        bolts, nuts = yield [("count", {"item": "bolts"}), ("count", {"item": "nuts"})]
        yield "submit", {"answer": bolts + nuts}
'''


async def test_one_turn_calls_several_tools_where_the_class_says_so(written: Written) -> None:
    trajectory = await demonstrated(written(SEVERAL))
    assert trajectory.reward == 1.0
    assert [len(turn.steps) for turn in trajectory.turns] == [2, 1]
    single = await demonstrated(written(SEVERAL.replace("several_calls = True", "")))
    assert (single.status, single.reward) == (Status.ENVIRONMENT_ERROR, None)
    assert "not a text or a pair of a tool's name and its arguments" in single.error
