"""`finqa show`: a run and its episodes, from what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.handed_on_runs import attempt
from fixtures.written_runs import begin, killed_run, write_evaluation

from finqa_cli.app import main
from finqa_cli.commands.shared.episode_transcript import opening_text, turn_text, verdict_text
from finqa_cli.runs.run_folder import write_manifest
from finqa_cli.runs.trajectory_records import recorded_trajectory, trajectory_record
from finqa_cli.wiring.policies import resolve

pytestmark = pytest.mark.usefixtures("_warm_commands", "empty_folder")


@pytest.fixture(autouse=True)
def _wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `finqa show` prints."""
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_a_run_with_what_happened_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train", iterations=2, planned=3) as folder:
        folder.event("sandbox_lost", sandbox="local-1", reason="it does not answer").result()
        folder.event("sandbox_ready", sandbox="local-2", seconds=1.5)
        folder.event("retried", id="a", status="completed", retries=1, recoveries=0).result()
        policy = {"model": "models/small", "adapter": None}
        data = {"name": "embedded", "digest": "sha256:0123456789ab"}
        write_manifest(folder.path, "train", parameters={}, inputs={"policy": policy, "data": data})
        folder.finish("interrupted")
    text = shown(capsys, "one")
    assert "runs/one: train, interrupted at iteration 2 of 3\n" in text
    for part in ("0.250 [0.150, 0.350] n=40 (accuracy, after iteration 0)", "models/small", "embedded (sha256:012345"):
        assert part in text
    assert "train.iterations=3" in text and "generation.max_steps" not in text, "only what is not the default"
    assert "1 retried, 1 sandbox_lost" in text and "sandbox_lost: sandbox local-1, reason it does not answer" in text
    assert "sandbox_ready" not in text and "finqa train --resume runs/one" in text


def test_only_chosen_settings_are_listed_and_the_policy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/one")
    write_evaluation(run, 0.5)
    settings = json.loads((run / "settings.json").read_text())
    settings["model"]["name"], settings["train"]["group_size"], settings["eval"]["limit"] = "embedded", 8, 1
    (run / "settings.json").write_text(json.dumps(settings))
    text = shown(capsys, "one")
    found = document(["show", "one"], capsys)
    assert "eval.limit=1" in text and "model.name=embedded" in text
    assert "train.group_size" not in text and f"and {len(found['automatic'])} set automatically: --json" in text
    assert found["settings"]["train.group_size"] == 8 and "train.group_size" in found["automatic"]
    small = resolve("embedded").model
    for model, files, name in (
        (small, {f"{small}/config.json": ""}, "embedded (ships with finqa)"),
        ("policy", {"policy/config.json": ""}, "folder policy"),
        ("Qwen/Qwen3-4B", {}, "Qwen/Qwen3-4B (hub id)"),
        ("Qwen/Qwen3-4B", {"a/config.json": ""}, "Qwen/Qwen3-4B (hub id) with the adapter a"),
    ):
        adapter = "a" if "adapter" in name else None
        policy = {"model": model, "adapter": adapter, "files": files}
        write_manifest(run, "eval", parameters={}, inputs={"policy": policy})
        assert f"policy       {name}\n" in shown(capsys, "one")


def test_episodes_are_listed_filtered_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/one"), 0.5, played=12, planned=12)
    found = document(["show", "runs/one"], capsys)
    assert [row["number"] for row in found["episodes"]] == list(range(1, 11)) and found["more_episodes"]
    failed = document(["show", "runs/one", "--failed", "--limit=0"], capsys)
    assert [row["number"] for row in failed["episodes"]] == [2, 3, 5, 6, 8, 9, 11, 12]
    assert failed["episodes"][1]["correct"] is None and failed["episodes"][1]["reward"] is None
    one = document(["show", "runs/one", "--search=DEV/Q7/"], capsys)
    assert [row["id"] for row in one["episodes"]] == ["dev/q7/0"]
    text = shown(capsys, "runs/one", "--failed", "--limit=1")
    assert "2. dev/q1/0  reward 0, wrong\n   What was the revenue?" in text and "There are more episodes" in text
    assert "not graded, environment_error" in shown(capsys, "runs/one", "--failed", "--limit=2")


def test_an_episode_is_the_transcript_of_play(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = write_evaluation(Path("runs/one"), 0.5)
    text = shown(capsys, "runs/one", "1")
    turns = "\n".join(turn_text(number, turn) for number, turn in enumerate(first.turns, start=1))
    assert f"{opening_text(first.task)}\n{turns}\n{verdict_text(first)}\n" in text
    assert "1. sql_query(query=SELECT 0)\n   > revenue 12" in text and "Answer: 0" in text
    assert "3 turns, tokens unknown, 0.0 s, policy version 0, 0 retries, 0 recoveries" in text
    for reference in ("dev/q0/0", "dev/q0"):
        assert shown(capsys, "runs/one", reference) == text
    found = document(["show", "runs/one", "3"], capsys)
    assert found["number"] == 3 and found["correct"] is None and found["record"]["id"] == "dev/q2/0"
    assert "Not graded: environment_error. the sandbox died" in shown(capsys, "runs/one", "3")


def test_a_record_is_read_as_it_was_written() -> None:
    for number, reward in enumerate((1.0, 0.0, None)):
        written = trajectory_record(attempt("q1", number, reward))
        again = trajectory_record(recorded_trajectory(written))
        changed = {name for name in written if written[name] != again[name]}
        assert changed == {"turns"}, "token ids are not recorded"
        words = [{**turn, "words": ""} for turn in written["turns"]]
        assert [{"words": "", **turn} for turn in again["turns"]] == words


def test_unknown_and_ambiguous_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/one"), 0.5)
    status, told = failure(["show", "runs/one", "dev/"], capsys)
    assert status == 2 and "begin with 'dev/': dev/q0/0, dev/q1/0, dev/q2/0." in told
    status, told = failure(["show", "runs/one", "4"], capsys)
    assert status == 65 and "has no episode '4'; it has 3" in told
    status, told = failure(["show", "elsewhere"], capsys)
    assert status == 65 and f"There is no run elsewhere in {Path.cwd()}.\n" in told and "finqa ls" in told
    for typed in ("runs/onne", "onne"):
        status, told = failure(["show", typed], capsys)
        assert status == 65 and told.count("Did you mean 'runs/one'?") == 1
    status, told = failure(["show", "runs/one", "1", "--failed"], capsys)
    assert status == 2


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07\x1b[2J", "\x9b31m", "a\u202eb", "\ud800", "x\rhidden"])
def test_texts_of_models_cannot_drive_the_terminal(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(Path("runs/one"), 0.5)
    file = Path("runs/one/trajectories.jsonl")
    record = json.loads(file.read_text().splitlines()[0])
    call = {"name": f"sql_query{hostile}", "arguments": {f"query{hostile}": hostile}}
    turn = {**record["turns"][0], "tool_call": call}
    turn["observation"] = {**turn["observation"], "text": hostile}
    plain = {**record["turns"][1], "text": hostile, "observation": None}
    record |= {"turns": [turn, plain], "explanation": hostile, "id": f"id{hostile}"}
    record["task"] |= {"prompt": hostile, "cluster": hostile}
    file.write_text(json.dumps(record) + "\n")
    for arguments in (["runs/one"], ["runs/one", "1"], ["runs/one", "--json"], ["runs/one", "1", "--json"]):
        text = shown(capsys, *arguments)
        assert all(each.isprintable() or each == "\n" for each in text), ascii(text)
    assert json.loads(text)["record"]["turns"][1]["text"] == hostile, "nothing is lost in the document"


def test_runs_without_episodes_and_damaged_ones(capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(Path("runs/killed"), "train", iterations=1)
    assert "crashed at iteration 1 of 24" in shown(capsys, "killed")
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    assert "damaged" in shown(capsys, "broken")
    write_evaluation(Path("runs/one"), 0.5)
    with Path("runs/one/trajectories.jsonl").open("a") as file:
        file.write('{"id": "torn')
    assert "3. dev/q2/0" in shown(capsys, "one")
    Path("runs/one/trajectories.jsonl").write_text('{"id": "dev/q0/0"}\n')
    status, told = failure(["show", "one"], capsys)
    assert status == 65 and "runs/one/trajectories.jsonl, line 1: not the record of an episode" in told
