from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finqa_cli.contracts import RewardRequest
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Task

SPEC = """
weights: {exact: 2, numerical: 1.0}
tolerances:
  numerical: 0.1
decay: flat
format: plain
components: {exact: What is right.}
ternary_mapping: {wrong: -2}
tests:
  - name: a quoted yes
    solution: "yes"
    truth: "yes"
    expected: {exact: 2, total: 2}
  - name: of the other reward
    reward: ternary
    solution: "no"
    truth: "yes"
    expected: {total: -2}
  - name: numbers are texts
    solution: 9.5
    truth: 10
    question: How much?
    table: [["", 2009], [revenue, 10]]
    expected: {numerical: 1.0, exact: 0}
"""


def total(name: str, solution: str, truth: str, **options: Any) -> float:
    reward = registry().create("reward", name, options)
    task = Task(id="q", prompt="?", split="test", cluster="ACME")
    return float(reward.score(RewardRequest(task=task, solution=solution, truth=truth)).total)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "reward_spec.yaml"
    path.write_text(SPEC)
    return path


def test_a_file_is_followed_and_options_win_over_it(spec: Path) -> None:
    assert total("weighted", "5", "5", spec=spec) == 2.0
    assert total("weighted", "9.5", "10", spec=spec) == 1.0
    assert total("weighted", "5", "5", spec=spec, weights="exact=3") == 3.0
    assert total("weighted", "9.5", "10", spec=spec, weights="exact=3") == 1.0  # the rest of the file stays
    assert total("weighted", "9.5", "10", spec=spec, decay="linear") == pytest.approx(0.5)
    assert total("ternary", "5", "6", spec=spec) == -2.0
    assert total("ternary", "5", "6", spec=spec, ternary_mapping={"wrong": -1.5}) == -1.5
    assert total("ternary", "9.5", "10", spec=spec) == 0.0


def test_what_is_shown_makes_the_same_reward(spec: Path, tmp_path: Path) -> None:
    for name in ("weighted", "ternary"):
        shown = registry().create("reward", name, {"spec": spec}).spec()
        again = tmp_path / f"{name}.yaml"
        again.write_text(yaml.safe_dump(dict(shown)))
        assert registry().create("reward", name, {"spec": again}).spec() == shown
    assert shown["weights"] == {"exact": 2.0, "numerical": 1.0, "program": 0.3, "format": -0.2}
    assert shown["components"] == {"exact": "What is right."} and len(shown["tests"]) == 3


def test_tests_go_to_the_reward_that_they_name(spec: Path) -> None:
    def names(name: str) -> set[str]:
        return {case.name for case in registry().create("reward", name, {"spec": spec}).cases()}

    assert {"a quoted yes", "numbers are texts"} <= names("weighted") and "of the other reward" not in names("weighted")
    assert "of the other reward" in names("ternary") and "a quoted yes" not in names("ternary")


def test_an_empty_file_changes_nothing_and_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = registry().create("reward", "weighted", {"spec": "~/empty.yaml"}).spec()
    assert shown == registry().create("reward", "weighted", {}).spec()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("weights:\n  exakt: 1\n", "unknown key 'weights.exakt'. Did you mean 'weights.exact'?"),
        ("weight: {}\n", "unknown key 'weight'. Did you mean 'weights'?"),
        ("weights: {format: 0.2}\n", "key 'weights.format': format is a penalty"),
        ("weights: {exact: .nan}\n", "key 'weights.exact'"),
        ("weights: 3\n", "key 'weights'"),
        ("tolerances: {numerical: five}\n", "key 'tolerances.numerical'"),
        ("ternary_mapping: {close: 2}\n", "must fall from exact"),
        ("tests: [{name: x, solution: a, truth: yes, expected: {total: 1}}]\n", 'put quotes around yes and no: "yes"'),
        ("tests: [{name: x, solution: a, truth: b, expected: {}}]\n", "key 'tests.0.expected'"),
        ("tests: [{name: x, solution: a, expected: {total: 1}}]\n", "key 'tests.0.truth'"),
        ("- a\n", "top level must be a mapping"),
        ("weights: [1\ndecay: flat", "not valid YAML"),
        ("decay: flat\nweights:\n\texact: 1\n", "(line 3, column 1)"),
        ("decay: flat\ndecay: linear\n", "the key 'decay' occurs twice (line 2, column 1)"),
        ("decay: !!python/object/apply:os.system [true]\n", "not valid YAML"),
        ("? {}\n: 1\n", "not valid YAML"),
        ("decay: \x07\n", "not valid YAML"),
        ("[" * 1200, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        total("weighted", "", "", spec=path)
    assert said in caught.value.message and str(path) in caught.value.message and caught.value.exit_code == 78


def test_a_missing_or_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"decay: \xff\n")
    for name, said in (("absent.yaml", "There is no"), ("latin.yaml", "Cannot read"), ("", "Cannot read")):
        with pytest.raises(ConfigError, match=said):
            total("weighted", "", "", spec=tmp_path / name)
