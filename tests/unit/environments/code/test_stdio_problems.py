"""Programs with standard input and output: LiveCodeBench's, APPS's and our own form."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import DataError
from finqa_plugins.environments._task_files.task_rows import FieldError
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment
from finqa_plugins.environments.code.stdio_problems import read_stdio, same_output

ADD = "print(sum(map(int, input().split())))"
OWN = {"task_id": "sum", "text": "Add two numbers.", "code": ADD,
       "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -5", "output": "0"}]}  # fmt: skip
PUBLIC = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "31000 337\n", "output": "31337\n", "testtype": "stdin"}]
LIVE = {"question_id": "abc_a", "question_content": "Add.", "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps(PUBLIC), "private_test_cases": json.dumps(PRIVATE)}  # fmt: skip
CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"},
         {"input": "[]\n1", "output": "[]", "testtype": "functional"}]  # fmt: skip
FUNCTIONAL = {**LIVE, "question_id": "lc_1", "starter_code": "class Solution:\n    def shift(self, xs, by):\n        ",
              "metadata": json.dumps({"func_name": "shift"}), "public_test_cases": json.dumps(CALLS[:1]),
              "private_test_cases": json.dumps(CALLS[1:])}  # fmt: skip
APPS = {"problem_id": 7, "question": "Add.", "solutions": json.dumps([ADD]),
        "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}  # fmt: skip
APPS_CALLS = {"problem_id": 8, "question": "Twice.", "solutions": json.dumps(["def twice(x):\n    return 2 * x"]),
              "input_output": json.dumps({"fn_name": "twice", "inputs": [[4]], "outputs": [[8]]})}  # fmt: skip
SHIFT = "class Solution:\n    def shift(self, xs, by):\n        return [x + by for x in xs]"


def compressed(value: object) -> str:
    """Private tests as newer files of LiveCodeBench have them."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def environment(path: Path, *rows: dict[str, Any]) -> MbppEnvironment:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MbppEnvironment(MbppConfig(max_attempts=1, time_limit_s=1), EnvironmentContext(snapshot=None, data=path))


async def answer(made: MbppEnvironment, code: str, place: int = 0) -> str:
    session = await made.open(made.tasks("test")[place], seed=0, sandbox=PlainSandbox())
    return (await session.reply(f"```python\n{code}\n```")).text


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (OWN, ADD),
        (LIVE, ADD),
        ({**LIVE, "private_test_cases": compressed(json.dumps(PRIVATE))}, ADD),
        (FUNCTIONAL, SHIFT),
        (APPS, ADD),
        (APPS_CALLS, "def twice(x):\n    return x + x"),
    ],
)
async def test_right_solutions_of_every_form_pass(row: dict[str, Any], code: str, tmp_path: Path) -> None:
    made = environment(tmp_path / "problems.jsonl", row)
    assert list(made.splits()) == ["test"]
    assert await answer(made, code) == "All tests passed."
    (task,) = made.tasks("test")
    assert "31337" not in task.prompt and ("standard input" in task.prompt) == (row not in (FUNCTIONAL, APPS_CALLS))
    session = await made.open(task, seed=0, sandbox=PlainSandbox())
    told = made.demonstrate(session.prompt().messages)
    assert (told is not None and bool(told.text)) == ("code" in row or "solutions" in row)


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        (LIVE, "print(3)", "1 of 2 tests passed.\n\nA hidden test failed."),
        (LIVE, "print(4)", "Input:\n1 2\n\nExpected output:\n3\n\nit gave \n4"),
        (LIVE, "print('3 3')", "0 of 2 tests passed."),
        (LIVE, "print(3)\nprint()\nprint(4)", "0 of 2 tests passed."),
        (LIVE, "raise KeyError('x')", "KeyError: 'x'"),
        (LIVE, "a, b = input().split()\nprint(1 // (a == '1') * 3)", "A hidden test failed."),
        (LIVE, "import sys; print(3); sys.exit(1)", "The program failed."),
        (LIVE, "while True: pass", "TimeoutError: not finished within 1 s"),
        (LIVE, "print('x' * 3_000_000)", "The program was ended (output)."),
        (LIVE, "def f(:", "SyntaxError"),
        (LIVE, "x = '\x00'", "SyntaxError: source code cannot contain null bytes"),
        (LIVE, f"x = '{'y' * 100_000}'", "SyntaxError: the program has"),
        (FUNCTIONAL, SHIFT.replace("+ by", "- by"), "it gave [-2, -1]"),
        (FUNCTIONAL, "def shift(xs, by): return xs", "NameError"),
    ],
)
async def test_wrong_ones_fail_with_what_the_author_may_know(
    row: dict[str, Any], code: str, said: str, tmp_path: Path
) -> None:
    told = await answer(environment(tmp_path / "problems.jsonl", row), code)
    assert said in told and "31337" not in told and "31000" not in told, told


async def test_the_documented_form_is_taken(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/code-problems.md").read_text(encoding="utf-8")
    (row,) = [json.loads(line) for line in page.splitlines() if line.startswith("{")]
    assert await answer(environment(tmp_path / "problems.jsonl", row), row["code"]) == "All tests passed."


def test_outputs_are_compared_by_words_and_numbers_by_value() -> None:
    for printed, expected in (("1  2 \n", "1 2"), ("\n3\n\n", "3\n"), ("1.0", "1"), ("1e1 x", "10.00 x"), ("", " \n")):
        assert same_output(printed, expected), (printed, expected)
    for printed, expected in (("1 2", "1\n2"), ("1", "1 1"), ("x", "X"), ("", "0"), ("nan", "1"), ("sNaN", "0")):
        assert not same_output(printed, expected), (printed, expected)


@given(st.text(), st.text())
def test_any_outputs_can_be_compared(printed: str, expected: str) -> None:
    assert same_output(printed, expected) == same_output(expected, printed)
    assert same_output(printed, f"{printed}\n")


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("made-by-pickle"),)


@pytest.mark.parametrize(
    ("row", "changes", "reason"),
    [
        (LIVE, {"private_test_cases": compressed(Hostile())}, "it asks for pathlib"),
        (LIVE, {"private_test_cases": compressed([1])}, "must have tests with the texts"),
        (LIVE, {"private_test_cases": "x!"}, "is neither JSON nor its compressed form"),
        (LIVE, {"public_test_cases": "[{"}, "is no JSON"),
        (LIVE, {"public_test_cases": "[3]"}, "must have tests with the texts input and output"),
        (LIVE, {"public_test_cases": "[]", "private_test_cases": "[]"}, "has no tests"),
        (LIVE, {"question_content": " "}, "must be a text that is not empty"),
        (LIVE, {"question_id": None}, "must be a text or a number"),
        (FUNCTIONAL, {"metadata": "{}"}, "must name the function"),
        (APPS, {"input_output": "[]"}, "must be an object with inputs and outputs"),
        (APPS, {"input_output": '{"inputs": [1], "outputs": []}'}, "has 1 inputs and 0 outputs"),
        (APPS_CALLS, {"input_output": '{"fn_name": "a b", "inputs": [], "outputs": []}'}, "invalid fn_name"),
        (OWN, {"tests": {}}, "must be a list"),
        (OWN, {"tests": [{"input": 1, "output": ""}]}, "must have tests with the texts"),
    ],
)
def test_malformed_rows_are_named(
    row: dict[str, Any], changes: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"row 1, field .*{reason}"):
        environment(tmp_path / "problems.jsonl", {**row, **changes})
    assert not Path("made-by-pickle").exists()


@given(st.dictionaries(st.sampled_from(sorted({*LIVE, *APPS, *OWN})), st.one_of(st.text(), st.integers(), st.none())))
def test_no_row_crashes_the_reader(row: dict[str, Any]) -> None:
    for form in (LIVE, APPS, OWN):
        try:
            assert read_stdio({**form, **row}).id
        except FieldError as error:
            assert str(error)
