from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures.code_play import environment, judged

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError, DataError
from finqa_plugins.environments.code.config import CodeConfig
from finqa_plugins.environments.code.function_environment import FunctionEnvironment
from finqa_plugins.rewards.answer_rewards import Graded, GradedConfig

FIELDS = {"prompt": "Write f(x).", "func_name": "f", "tests": ["1"], "reference": "abs"}

PYTHON = '''
import os
PROMPT = """# Mine.
def twice(x):
"""
LIMIT: int = 3
TASKS = {
    "twice": {
        "prompt": PROMPT,
        "func_name": "twice",
        "banned_patterns": ["sum("],
        "tests": ["1", "[2]", "random.randint(0, 9)"],
        "reference": "lambda x: x * 2",
    },
}
raise SystemExit("never executed")
'''


def toml(**changes: object) -> str:
    fields = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    return "[f]\n" + "".join(f"{name} = {_text(value)}\n" for name, value in fields.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


async def test_a_python_file_is_read_and_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PYTHON)
    played = environment(path)
    (task,) = played.tasks("train")
    assert task.id == "twice" and task.prompt == "# Mine.\ndef twice(x):\n"
    assert (await judged(played, "twice", "    return x + x")).total == 1.0
    assert (await judged(played, "twice", "    return sum([x, x])")).components["banned"] == 1.0


def test_who_holds_nothing_out_is_evaluated_on_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml())
    own, ours = environment(path), environment()
    assert own.splits() == ours.splits() and own.data().name == "mine.toml"
    assert own.tasks("dev") == ours.tasks("dev") and own.tasks("test") == ours.tasks("test")
    assert own.data().digest != ours.data().digest


def test_a_folder_has_splits_by_the_names_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(toml())
    (tmp_path / "val.toml").write_text(toml().replace("[f]", "[g]") + toml(split="test").replace("[f]", "[h]"))
    (tmp_path / "notes.md").write_text("no tasks")
    played = environment(tmp_path)
    assert {split: [task.id for task in played.tasks(split)] for split in played.splits()} == {
        "train": ["f"],
        "dev": ["g"],
        "test": ["h"],
    }


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.toml", "[f]\nprompt = ", "cannot be read"),
        ("a.toml", "", "holds no task"),
        ("a.toml", "f = 1", "task 'f' is not a table"),
        ("a.toml", toml(prompt=None), "task 'f', field 'prompt'"),
        ("a.toml", toml(tests=[]), "task 'f', field 'tests'"),
        ("a.toml", toml(tests=[1]), "task 'f', field 'tests.0'"),
        ("a.toml", toml(func_name="a b"), "field 'func_name': is not the name"),
        ("a.toml", toml(split="holdout"), "field 'split': is none of train"),
        ("a.toml", toml(banned_patterns=["  "]), "field 'banned_patterns': '  ' says nothing"),
        ("a.toml", toml(tolerance=-1), "field 'tolerance'"),
        ("a.toml", toml(answer="1"), "field 'answer'"),
        ("a.toml", toml(id="g"), "field 'id': is not allowed in files"),
        ("a.toml", toml(careless="1"), "field 'careless': is not allowed in files"),
        (
            "a.py",
            "TASKS = {'f': {'prompt': 'p', 'func_name': 'f', 'tests': [b'1'], 'reference': 'r'}}",
            "field 'tests.0'",
        ),
        ("a.py", "X = 1", "has no TASKS"),
        ("a.py", "TASKS = make()", "is not a literal"),
        ("a.py", "TASKS = [1]", "is not a dictionary"),
        ("a.py", "TASKS = {1: 2}", "task '1' is not a table"),
        ("a.py", "TASKS = {'f': {1: 2}}", "task 'f', field"),
        ("a.py", "def f(:", "cannot be read"),
        ("a.py", "TASKS = " + "(" * 3000, "cannot be read"),
        ("a.json", "{}", "neither .toml nor .py"),
        ("a.toml", "\udcff", "cannot be read"),
    ],
)
def test_malformed_files_say_what_and_where(name: str, content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(DataError, match=re.escape(reason)) as raised:
        environment(path)
    assert str(path) in raised.value.message and "\n" not in raised.value.message.removesuffix(".")


def test_missing_and_odd_paths(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", Path("/dev/null"), tmp_path):
        with pytest.raises(DataError):
            environment(path)
    (tmp_path / "a.toml").write_text(toml())
    (tmp_path / "b.toml").write_text(toml())
    with pytest.raises(DataError, match="task 'f' is also in another file"):
        environment(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tests": ["1 +"]}, "test '1 +' fails: SyntaxError"),
        ({"tests": ["1", "nothing"]}, "test 'nothing' fails: NameError"),
        ({"tests": ["'x'"]}, "the reference on test \"'x'\" fails: TypeError"),
        ({"reference": "lambda x: (y for y in [])"}, "not plain data"),
        ({"reference": "float('nan')"}, "expects NaN"),
        ({"reference": "[float('nan')]"}, "expects NaN"),
        ({"setup": "raise ValueError('no')"}, "its setup fails: ValueError: no"),
        ({"many_arguments": True}, "gives no tuple"),
    ],
)
async def test_tasks_that_fail_by_themselves_are_the_users_mistake(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(toml(**changes))
    with pytest.raises(DataError, match=re.escape(reason)):
        await judged(environment(path), "f", "def f(x): return x")


async def test_every_field_means_something(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        toml(
            tests=["(1, 3)", "(2, 3)"],
            many_arguments=True,
            setup="def third(a, b): return a / b",
            reference="third",
            tolerance=0.01,
            kind="arithmetic",
        )
    )
    played = environment(path)
    assert played.tasks("train")[0].kind == "arithmetic"
    assert (await judged(played, "f", "def f(a, b): return round(a / b, 2)")).total == 1.0
    assert (await judged(played, "f", "def f(a, b): return round(a / b, 1)")).total == 0.0


async def test_a_reference_may_be_the_result_for_xs(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(toml(tests=["[3, 1]", "[]"], reference="sorted(xs)"))
    assert (await judged(environment(path), "f", "def f(xs): return sorted(xs)")).total == 1.0


def test_rewards_that_compare_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="grades with its tests"):
        FunctionEnvironment(CodeConfig(), EnvironmentContext(snapshot=None, reward=Graded(GradedConfig())))
