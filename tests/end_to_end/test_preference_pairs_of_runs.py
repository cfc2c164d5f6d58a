"""`finqa prefs` on runs of any origin, and on runs that do not go together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document

from finqa_cli.app import main
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import Message, Rewards, Status, Task, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("empty_folder")


def run_of(
    name: str,
    rewards: Sequence[Sequence[float | None]],
    *,
    command: str = "eval",
    phase: str = "eval",
    system: str = "Answer.",
    digest: str = "sha256:1",
    settings: Settings | None = None,
    status: str = "completed",
) -> str:
    """A run with one question per row of rewards; each attempt says its own reward and place. None is a fault."""
    facts = to_public_dict(settings or Settings())
    with RunFolder.create(Path(name), command=command, settings=facts, save_token_ids=True) as folder:
        folder.pin("data digest", digest)
        for number, row in enumerate(rewards):
            task = Task(id=f"q{number}", prompt="How much?", split="train", cluster=f"c{number}")
            for member, reward in enumerate(row):
                said = f"{name}: {reward} as {member}"
                turn = Turn(prompt_ids=(1, 2), completion_ids=(3, member), logprobs=(-0.5, -0.5), text=said)
                trajectory = Trajectory(
                    id=f"eval/q{number}/{member}",
                    task=task,
                    member=member,
                    seed=0,
                    status=Status.ENGINE_ERROR if reward is None else Status.COMPLETED,
                    turns=(turn,),
                    messages=(Message(role="system", content=system), Message(role="user", content="How much?")),
                    rewards=None
                    if reward is None
                    else Rewards(total=reward, components={"correct": float(reward >= 1)}),
                )
                folder.trajectory(trajectory, phase=phase, iteration=0)
        folder.finish(status)
    return name


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 65) -> str:
    capsys.readouterr()
    assert main(["prefs", *arguments, "-q"]) == code, capsys.readouterr().err
    return capsys.readouterr().err


def pairs(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "pairs.jsonl").read_text().splitlines()]


def test_faults_are_no_candidates_and_questions_without_a_right_one_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_of("a", [[0.0, 1.0, None], [0.2, 0.0, 0.0], [1.0, 1.0], [0.5], [None, None]])
    report = document(["prefs", run, "--run-dir=p"], capsys)
    assert (report["questions"], report["attempts"], report["pairs"]) == (4, 8, 2)
    assert (report["right_missing"], report["single"], report["no_spread"]) == (2, 1, 1)
    assert {(pair["id"], pair["margin"]) for pair in pairs("p")} == {("q0#0", 1.0), ("q1#0", 0.2)}
    assert report["held_out"] == 1 and report["chosen"]["right"] == 0.5
    only = document(["prefs", run, "--rule=right-wrong", "--run-dir=r"], capsys)
    assert [pair["id"] for pair in pairs("r")] == ["q0#0"] and only["held_out"] == 0
    manifest = json.loads(Path("p/manifest.json").read_text())
    assert set(manifest["inputs"]["a"]) == {"trajectories.jsonl"} and manifest["parameters"]["seed"] == 0


def test_several_runs_make_pairs_together_and_the_seed_repeats_them(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of("a", [[0.0], [0.0, 0.5]]), run_of("b", [[1.0], [1.0, 0.0]])]
    document(["prefs", *runs, "--rule=all", "--pairs-per-question=2", "--run-dir=p"], capsys)
    document(["prefs", *runs, "--rule=all", "--pairs-per-question=2", "--run-dir=q"], capsys)
    assert pairs("p") == pairs("q") and len(pairs("p")) == 3
    assert pairs("p")[0]["chosen"]["run"] == "b" and pairs("p")[0]["rejected"]["run"] == "a"


def test_pairs_do_not_depend_on_which_attempt_ended_first(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("a", [[0.0, 1.0, 1.0, 0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    rules = ["--rule=all", "--pairs-per-question=2"]
    document(["prefs", run, *rules, "--run-dir=p"], capsys)
    document(["export", run, "--to=trl-sft", "--out=sft"], capsys)
    log = Path(run, "trajectories.jsonl")
    log.write_text("".join(reversed(log.read_text().splitlines(keepends=True))))
    document(["prefs", run, *rules, "--run-dir=q"], capsys)
    document(["export", run, "--to=trl-sft", "--out=again"], capsys)
    assert pairs("p") == pairs("q") != []
    assert Path("sft/train.jsonl").read_text() == Path("again/train.jsonl").read_text() != ""


def test_of_a_training_run_only_what_was_trained_on_is_paired(capsys: pytest.CaptureFixture[str]) -> None:
    asked = run_of("held_out", [[0.0, 1.0]], command="train", phase="eval")
    assert "no graded attempt" in refusal([asked], capsys)
    trained = run_of("trained", [[0.0, 1.0]], command="train", phase="train")
    assert document(["prefs", trained, "--run-dir=p"], capsys)["pairs"] == 1


def test_runs_that_do_not_go_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("a", [[0.0, 1.0]])
    assert "over different data" in refusal([run, run_of("b", [[1.0]], digest="sha256:2")], capsys)
    strict = Settings.model_validate({"reward": {"name": "exact"}})
    assert "judged differently" in refusal([run, run_of("c", [[1.0]], settings=strict)], capsys)
    assert "do not have the same prompt" in refusal([run, run_of("d", [[1.0]], system="Answer shortly.")], capsys)
    assert "given twice" in refusal([run, "./a"], capsys, 2)
    log = Path(run_of("e", [[0.0, 1.0]]), "trajectories.jsonl")
    log.write_text(log.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    assert "e/trajectories.jsonl, row 1: written in file version 9" in refusal(["e"], capsys)
    log.write_text('{"schema_version": 1, "reward": 3}\n')
    assert "row 1: not an attempt" in refusal(["e"], capsys)


def test_no_pair_at_all_is_told_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("a", [[0.0, 0.3], [0.0, 0.0], [0.7]])
    told = refusal([run, "--margin=0.5", "--run-dir=p"], capsys)
    assert "None of 3 questions" in told and "1 have one attempt only" in told and "do not differ by 0.5" in told
    assert "--num-candidates" in told and not Path("p").exists()
    assert "must be 0 or more" in refusal([run, "--margin=-0.1"], capsys, 2)
    assert "no attempts at nowhere" in refusal(["nowhere"], capsys)
    Path("full").mkdir()
    Path("full/kept.txt").write_text("mine")
    assert "not an empty folder" in refusal([run, "--run-dir=full"], capsys, 78)


def test_an_unfinished_run_is_used_as_far_as_it_goes_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("a", [[0.0, 1.0]], status="interrupted")
    assert main(["prefs", run, "--run-dir=p"]) == 0
    assert "is not finished" in capsys.readouterr().err
