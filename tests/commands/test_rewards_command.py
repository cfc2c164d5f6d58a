from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fixtures.command_calls import document, failure, write_rows

from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_rewards_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [one["name"] for one in document(["rewards", "show"], capsys)["rewards"]]
    assert names[0] == "environment" and {"weighted", "ternary", "function", "graded"} <= set(names)
    assert main(["rewards", "show"]) == 0
    assert "finqa train --reward NAME" in capsys.readouterr().out


def test_what_is_shown_can_be_written_edited_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewards", "show", "weighted"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["weights"] == {"exact": 1.0, "numerical": 0.8, "program": 0.3, "format": -0.2}
    assert printed["tolerances"] == {"numerical": 0.05, "percentage": 0.02}
    shown = document(["rewards", "show", "weighted", "--weights", "exact=2", "--out", "mine"], capsys)
    assert shown["specification"]["weights"]["exact"] == 2.0 and len(shown["files"]) == 2
    manifest = json.loads(Path("mine/manifest.json").read_text())
    assert manifest["module"] == "rewards" and manifest["config"]["weights"]["exact"] == 2.0 and manifest["timestamp"]
    again = document(["rewards", "show", "--spec", "mine/reward_spec.yaml"], capsys)
    assert again["specification"] == shown["specification"] and again["reward"] == "weighted"
    assert document(["rewards", "show", "graded"], capsys)["specification"] == {
        "profile": "strict-3",
        "format": "plain",
    }


def test_the_settings_file_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("finqa.toml").write_text('[reward]\nname = "ternary"\n[reward.options]\nformat = "plain"\n')
    assert document(["rewards", "show", "ternary"], capsys)["specification"]["format"] == "plain"
    assert document(["rewards", "test"], capsys)["reward"] == "ternary"
    assert document(["rewards", "show", "weighted"], capsys)["specification"]["format"] == "json"


@pytest.mark.parametrize("name", ["weighted", "ternary"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["reward.options.format=plain"],
        ["reward.options.tolerances={numerical=0.07, percentage=0.001}"],
        ["reward.options.tolerances={numerical=1.0}"],
    ],
)
def test_every_reward_passes_its_own_tests_under_any_specification(
    name: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rewards", "test", name, *(word for option in options for word in ("--set", option))]
    if name == "weighted":
        arguments += ["--weights", "exact=3,numerical=0.5,program=0.25,format=-1", "--set", "reward.options.decay=flat"]
    result = document(arguments, capsys)
    assert result["failed"] == 0 and result["passed"] >= 15


def test_the_verdict_of_an_environment_is_specified_and_tested(capsys: pytest.CaptureFixture[str]) -> None:
    of_text = ["--set", "environment.name=finqa-text"]
    assert document(["rewards", "show", "environment", *of_text], capsys)["specification"]["total"] == "correct"
    result = document(["rewards", "test", "environment", *of_text, "--out", "out"], capsys)
    assert result["failed"] == 0 and result["passed"] >= 15 and Path("out/unit_tests/test_results.json").is_file()
    stored = [case["expected"]["total"] for case in json.loads(Path("out/unit_tests/test_cases.json").read_text())]
    assert {0.0, 1.0} == set(stored)
    rows = [{"id": "a", "solution": '{"answer": 0.2, "program": "divide(1, 5)"}', "truth": "0.2"}]
    rows.append({"id": "b", "solution": '{"answer": 0.2}', "truth": "0.3"})
    Path("rows.json").write_text(json.dumps(rows))
    assert document(["rewards", "score", "rows.json", "environment", *of_text], capsys)["mean_reward"] == 0.5
    Path("rows.json").write_text(json.dumps([{**rows[0], "truth": "perhaps"}]))
    assert (
        "neither a number nor yes or no"
        in failure(["rewards", "score", "rows.json", "environment", *of_text, "--overwrite"], capsys)[1]
    )
    assert "finqa cannot be used as a separate reward." in failure(["rewards", "test", "environment"], capsys)[1]


def test_the_six_cases_of_the_pipeline_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    results = document(["rewards", "test"], capsys)["results"]
    totals = {result["name"]: result["actual"]["total"] for result in results}
    assert [round(total, 9) for total in list(totals.values())[:6]] == [1.0, 0.784, 0.4, 0.0, 0.0, 0.0]
    assert totals["right program"] == 1.3 and totals["one of two steps"] == 0.15 and totals["no JSON"] == -0.2


def test_tests_of_a_specification_pass_or_fail(capsys: pytest.CaptureFixture[str]) -> None:
    case = {"name": "mine", "solution": {"answer": "5"}, "truth": "5", "expected": {"exact": 1.0, "program": 0.3}}
    Path("spec.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    result = document(["rewards", "test", "--spec", "spec.yaml", "--out", "out"], capsys, status=1)
    assert result["failed"] == 1 and result["file"] == "out/unit_tests/test_results.json"
    assert json.loads(Path(result["file"]).read_text())["failed"] == 1
    stored = json.loads(Path("out/unit_tests/test_cases.json").read_text())
    assert len(stored) == len(result["results"]) and stored[-1]["name"] == "mine"
    assert main(["rewards", "test", "--spec", "spec.yaml"]) == 1
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("FAILED"))
    assert "mine" in line and "exact=1 program=0.3" in line
    case["expected"] = {"exact": 1.0, "total": 1.0, "exakt": 0.0}
    Path("spec.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    assert main(["rewards", "test", "--spec", "spec.yaml"]) == 1
    assert "exakt=missing" in capsys.readouterr().out


def test_tests_need_no_heavy_package() -> None:
    code = (
        "import sys; from finqa_cli.app import main; status = main(['rewards', 'test', '--json']);"
        "heavy = {'torch', 'transformers', 'openenv', 'pyarrow', 'pandas', 'numpy', 'sympy'} & set(sys.modules);"
        "sys.exit(status or ('loaded: ' + ', '.join(heavy) if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["show", "weihgted"], 78, "Did you mean 'weighted'"),
        (["show", "weighted", "--spec", "absent.yaml"], 78, "absent.yaml"),
        (["show", "ternary", "--weights", "exact=1"], 78, "no option 'weights'"),
        (["show", "function"], 78, "function"),
        (["test", "graded"], 78, "has no tests"),
        (["test", "environment"], 78, "verdict of the environment finqa"),
        (["test", "weighted", "--weights", "exact"], 78, "exact=1.0,numerical=0.8"),
        (["score", "scores.jsonl"], 74, "--out DIR"),
    ],
)
def test_mistakes_say_what_mends_them(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows("scores.jsonl", {"id": "a", "solution": "1", "truth": "1"})
    assert failure(["rewards", *arguments], capsys)[0] == status
    main(["rewards", *arguments])
    assert said in capsys.readouterr().err
