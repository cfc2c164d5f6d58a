"""What cannot be played is refused by its name; what fails while it is played is a fault, and no score."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.openai_server import calls, openai_server, says

from finqa_cli.app import main
from finqa_testing.tiny_models import make_tiny_qwen3

Named = Callable[[str], list[str]]
ARGUMENTS = "--set=environment.options.arguments="


@pytest.mark.parametrize(
    ("source", "arguments", "named_in_the_text"),
    [
        ("verifiers:refused_of_verifiers", '{kind = "judge"}', "Its JudgeRubric calls another model"),
        ("verifiers:refused_of_verifiers", '{kind = "group"}', "Its reward grouped scores a group at once"),
        ("verifiers:refused_of_verifiers", '{kind = "sandbox"}', "It is a SandboxEnv, which has"),
        ("verifiers:refused_of_verifiers", '{kind = "x"}', "no kind 'x'"),
        ("verifiers:no_such_environment", "{}", "Could not import 'no_such_environment'"),
        ("inspect:inspect_tasks.py@judged", "{}", "Its scorer inspect_ai/model_graded_qa calls another model"),
        ("inspect:inspect_tasks.py@sandboxed", "{}", "It needs a sandbox of Inspect"),
        ("inspect:inspect_tasks.py@no_such", "{}", "has no task 'no_such'; it has: capitals, chosen, sums"),
        ("inspect:inspect_tasks.py", "{}", "has several tasks; it has: capitals"),
        ("inspect:no_such.py@sums", "{}", "There is no file no_such.py"),
        ("inspect:no_such/task", "{}", "no_such/task was not found"),
        ("inspect:inspect_tasks.py@capitals", "{nothing = 1}", "nothing"),
    ],
)
def test_refused(
    source: str, arguments: str, named_in_the_text: str, named: Named, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = failure(["eval", "random", *named(source), f"{ARGUMENTS}{arguments}"], capsys)
    assert status == 78 and f"error: {source} cannot be " in said and named_in_the_text in said


def test_a_reward_that_raises_is_a_fault(named: Named, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verifiers itself logs the exception and counts 0."""
    flags = [*named("verifiers:guess_of_verifiers"), ARGUMENTS + "{fail = true}", f"--run-dir={tmp_path / 'run'}"]
    with openai_server(lambda body: says("5")) as server:
        status = main(["eval", "analyst", "--engine=openai", f"--set=engine.options.base_url={server.url}", *flags])
    assert status != 0
    assert "Error calling reward function quick: 'tries'" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "run/trajectories.jsonl").read_text().splitlines()]
    assert rows and all(row["status"] == "environment_error" and row["reward"] is None for row in rows)


def test_an_episode_that_a_limit_cuts_is_scored(
    named: Named, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*named("inspect:inspect_tasks.py@sums"), "--max-steps=2", "--limit=1", f"--run-dir={tmp_path / 'run'}"]
    with openai_server(lambda body: calls(("add", {"a": 1, "b": 2}), text="two words")) as server:
        document(
            ["eval", "analyst", "--engine=openai", f"--set=engine.options.base_url={server.url}", *flags, "-q"], capsys
        )
    (row,) = [json.loads(line) for line in (tmp_path / "run/trajectories.jsonl").read_text().splitlines()]
    assert row["status"] == "max_turns" and row["reward"] == 0.5 and len(row["turns"]) == 2


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("verifiers:capitals_of_verifiers", ()),
        ("inspect:inspect_tasks.py@sums", ("--set=environment.options.divide=true",)),
    ],
)
def test_one_iteration_trains(
    source: str, options: tuple[str, ...], named: Named, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrained model says words of differing number, which both score."""
    model = make_tiny_qwen3(tmp_path / "tiny")
    capsys.readouterr()  # transformers' progress
    few = ["--iterations=1", "--group-size=4", "--target-groups-per-iter=2", "--max-gen-tokens=24", "--no-preflight"]
    flags = [*named(source), *few, "--engine=transformers", f"--model={model}", f"--run-dir={tmp_path / 'run'}"]
    document(["train", *flags, *options, "--max-steps=3", "-q"], capsys)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (iteration,) = [row for row in rows if row["kind"] == "train"]
    assert iteration["updates"] == 1 and iteration["faults"] == 0 and iteration["loss_tokens"] > 0
