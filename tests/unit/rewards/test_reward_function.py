from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import RewardRequest
from finqa_cli.errors import CodeFault, ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Rewards, Task

TASK = Task(id="q", prompt="?", split="test", cluster="ACME")
SEEN = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert (data_source, solution_str, ground_truth, extra_info) == ("stock", "up", "down", {"uncertainty": 0.4})
    return {"score": 1, "has_tag": True, "length": 2.5, "note": "text"}
"""


@pytest.fixture
def write(empty_folder: Path) -> Any:
    def written(body: str, name: str = "mine.py") -> str:
        (empty_folder / name).write_text(body)
        return name

    return written


def called(function: str, **options: Any) -> Rewards:
    reward = registry().create("reward", "function", {"function": function, **options})
    request = RewardRequest(
        task=TASK, solution="up", truth="down", data_source="stock", extra_info={"uncertainty": 0.4}
    )
    rewards: Rewards = reward.score(request)
    return rewards


def giving(expression: str) -> str:
    return f"def compute_score(**given):\n    return {expression}\n"


def test_it_is_called_as_verl_does_and_parts_are_logged(write: Any) -> None:
    rewards = called(write(SEEN))
    assert rewards == Rewards(total=1.0, components={"has_tag": 1.0, "length": 2.5})


@pytest.mark.parametrize(("result", "total"), [("0.25", 0.25), ("-3", -3.0), ("True", 1.0), ("{'score': 0}", 0.0)])
def test_numbers(write: Any, result: str, total: float) -> None:
    assert called(write(giving(result))).total == total


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("None", "returned no number: its result is of type NoneType"),
        ("'1.0'", "of type str"),
        ("[1.0]", "of type list"),
        ("float('nan')", "no finite number"),
        ("float('inf')", "no finite number"),
        ("{'value': 1}", "without 'score'"),
        ("{'score': '1'}", "score is of type str"),
        ("{'score': 1, 'part': None}", "part is of type NoneType"),
        ("{'score': 1, 'part': float('nan')}", "part is nan"),
        ("10 ** 400", "no finite number"),
        ("given['nothing']", "raised KeyError: 'nothing'"),
        ("__import__('sys').exit(0)", "raised SystemExit"),
    ],
)
def test_what_is_no_number_is_a_fault_and_never_0(write: Any, result: str, said: str) -> None:
    with pytest.raises(CodeFault) as caught:
        called(write(giving(result)))
    assert said in caught.value.message and "mine.py" in caught.value.message
    line = 2 if "raised" in said else 1  # of the function, where what it returned is wrong
    assert f"{Path('mine.py').resolve()}:{line})" in caught.value.message
    assert caught.value.remedy == f"correct {Path('mine.py').resolve()}:{line}"


def test_a_name_a_module_and_further_arguments(write: Any, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def other(data_source, solution_str, ground_truth, extra_info=None, scale=1): return scale * 2"
    assert called(f"{write(body)}:other", kwargs={"scale": 3}).total == 6
    write(giving("4"), "finqa_test_reward_module.py")
    monkeypatch.syspath_prepend(str(empty_folder))
    assert called("finqa_test_reward_module").total == 4
    assert called("finqa_test_reward_module:compute_score").total == 4
    monkeypatch.delitem(sys.modules, "finqa_test_reward_module")


def test_a_file_may_hold_dataclasses_and_have_the_name_of_a_module(write: Any) -> None:
    body = (
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass\nclass Pair:\n    first: int\n" + giving("Pair(7).first")
    )
    assert called(write(body, "json.py")).total == 7
    import json

    assert json.dumps(1) == "1" and sys.modules["json"] is json


def test_its_specification_tells_what_is_in_the_file(write: Any) -> None:
    def made(function: str) -> Any:
        return registry().create("reward", "function", {"function": function, "kwargs": {"scale": 2}})

    file = write("def compute_score(**given):\n    return 1\n")
    before = made(file)
    assert before.spec() == {
        "function": file,
        "kwargs": {"scale": 2},
        "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest(),
    }
    write("def compute_score(**given):\n    return 2\n")
    after = made(file)
    assert after.spec()["sha256"] != before.spec()["sha256"]
    request = RewardRequest(task=TASK, solution="", truth="")
    assert (before.score(request).total, after.score(request).total) == (1, 2), "each is what it was made from"
    assert made("builtins:dict").spec()["sha256"] is None


def test_a_file_is_imported_once(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("print('loading a model')\ndef compute_score(**given):\n    return 1\n")
    assert called(file) == called(file) and capsys.readouterr().err.count("loading") == 1


def test_what_it_prints_goes_to_stderr(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    called(write("print('loading')\n" + giving("print('calling') or 1")))
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "loading\ncalling\n"


@pytest.mark.parametrize(
    ("body", "function", "said"),
    [
        ("", "absent.py", "no file absent.py"),
        ("", "mine.py", "no function 'compute_score'"),
        ("", "mine.py:score", "no function 'score'"),
        ("score = 3", "mine.py:score", "is a int, not a function"),
        ("async def score(**given): ...", "mine.py:score", "async"),
        ("def score(solution): ...", "mine.py:score", "cannot be called as"),
        ("def score(data_source, solution_str, ground_truth): ...", "mine.py:score", "extra_info"),
        ("def f(:", "mine.py", "SyntaxError"),
        ("import no_such_package", "mine.py", "No module named 'no_such_package'"),
        ("raise SystemExit(3)", "mine.py", "SystemExit"),
        ("", "no_such_package.rewards:score", "No module named 'no_such_package'"),
        ("", ":", "cannot be imported"),
        ("", "..:x", "cannot be imported"),
    ],
)
def test_what_cannot_be_loaded_is_a_settings_error_with_a_remedy(
    write: Any, body: str, function: str, said: str
) -> None:
    write(body)
    with pytest.raises(ConfigError) as caught:
        called(function)
    assert said in caught.value.message and caught.value.remedy


def test_an_unknown_keyword_is_found_before_the_first_call(write: Any) -> None:
    body = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1"
    with pytest.raises(ConfigError, match="unexpected keyword argument 'scale'"):
        called(write(body), kwargs={"scale": 3})


def test_the_option_is_needed() -> None:
    with pytest.raises(ConfigError, match="reward 'function' needs the option 'function', which is not given"):
        registry().create("reward", "function", {})
    with pytest.raises(ConfigError, match=r"has no option 'functoin'\. Did you mean 'function'\?"):
        registry().create("reward", "function", {"functoin": "mine.py"})


@pytest.mark.parametrize("name", ["./mine.py", "mine.py:score"])
def test_a_file_as_the_name_of_a_reward_says_how_it_is_used(name: str) -> None:
    with pytest.raises(ConfigError, match="used by the reward 'function'") as caught:
        registry().find("reward", name)
    assert caught.value.remedy == f"--reward function --set reward.options.function={name}"


def test_the_environments_reason_is_marked_where_the_reward_differs(write: Any) -> None:
    request = RewardRequest(task=TASK, solution="up", truth="up")
    own = Rewards(total=1.0, components={"correct": 1.0}, explanation="'up' matches.")
    same = registry().create("reward", "function", {"function": write(giving("1.0"))}).score_beside(request, own)
    assert same.explanation == "'up' matches."
    other = registry().create("reward", "function", {"function": write(giving("0.25"), "other.py")})
    judged = other.score_beside(request, own)
    assert judged.total == 0.25 and judged.components["correct"] == 1.0
    assert judged.explanation == "from the reward that was chosen; the environment says: 'up' matches."
