"""The main job as a user runs it: real processes, real server, real policy, real signals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.file_checks import check_folder
from fixtures.warm_python import WarmProcess

from finqa_cli.app import main

pytest.importorskip("torch", reason="needs finqa[train]")

SMALL = [
    "--model=embedded",
    "--engine=transformers",
    "--sandbox=local",
    "--sandboxes=12",
    "--group-size=4",
    "--target-groups-per-iter=3",
    "--max-rollout-rounds=2",
    "--limit=8",
    "--seed=3",
]

HANG_S = 280.0
pytestmark = pytest.mark.timeout(300)  # runs of real processes, which a busy machine may slow down threefold


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def finqa(home: Path) -> Callable[..., WarmProcess]:
    """The command in a process of its own, in which torch is imported already."""
    return lambda *arguments: WarmProcess("finqa_cli", *arguments, environment=variables(home), cwd=home)


def variables(home: Path) -> dict[str, str]:
    return {**os.environ, "FINQA_HOME": str(home), "OMP_NUM_THREADS": "1", "CI": "1"}


def finish(process: WarmProcess, expected: int = 0) -> tuple[str, str]:
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == expected, errors
    assert "Traceback" not in errors
    return output, errors


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "timing"} for line in lines]


def weights(run: Path, iteration: int) -> str:
    path = run / "checkpoints" / f"step_{iteration}" / "policy" / "adapter_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for(condition: Callable[[], bool], process: WarmProcess) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def servers(home: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"FINQA_SNAPSHOT={home}".encode() in environment:
                found.append(entry.name)
    return found


def no_server_is_left(home: Path) -> bool:
    deadline = time.monotonic() + 30
    while servers(home) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not servers(home)


@pytest.fixture(scope="module")
def unbroken(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from a program that imports everything itself."""
    run = tmp_path_factory.mktemp("runs") / "unbroken"
    command = [sys.executable, "-m", "finqa_cli", "train", *SMALL, "--iterations=3", f"--run-dir={run}", "--json"]
    done = subprocess.run(command, env=variables(home), cwd=home, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    trained = json.loads(done.stdout)
    assert trained["run"] == str(run) and trained["before"]["iteration"] == 0
    return run


@pytest.mark.thorough
def test_engine_and_learner_agree_and_every_clean_episode_lands_in_a_group(unbroken: Path) -> None:
    iterations = [record for record in metrics(unbroken) if record["kind"] == "train"]
    assert [record["iteration"] for record in iterations] == [1, 2, 3]
    assert any(record["updates"] for record in iterations), "nothing was learned from: the test shows nothing"
    adapter = unbroken / "checkpoints" / "step_3" / "policy" / "adapter_model.safetensors"
    for record in iterations:
        assert record["episodes_in_groups"] == record["episodes"] == 4 * record["groups"]
        assert record["informative"] >= 3 or record["groups"] == 2 * 3
        if record["updates"]:
            assert record["logprob_difference_max"] <= 1e-4
            assert record["sync_bytes"] == adapter.stat().st_size


@pytest.mark.thorough
def test_killed_and_resumed_is_bit_for_bit_the_unbroken_run(
    finqa: Callable[..., WarmProcess], unbroken: Path, home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    process = finqa("train", *SMALL, "--iterations=3", f"--run-dir={run}")
    played = run / "trajectories.jsonl"
    wait_for(lambda: played.exists() and played.read_text().count('"iteration": 2') > 2, process)
    process.kill()
    process.communicate()
    assert no_server_is_left(home)
    assert not (run / "checkpoints" / "step_2").exists(), "killed while groups were being played"
    finish(finqa("train", f"--resume={run}"))
    assert metrics(run) == metrics(unbroken)
    assert weights(run, 3) == weights(unbroken, 3)
    ids = [json.loads(line)["id"] for line in (run / "trajectories.jsonl").read_text().splitlines()]
    assert len(set(ids)) == len(ids) == sum(record["episodes"] for record in metrics(run))
    assert (run / "trajectories.superseded.jsonl").exists()
    check_folder(run)


@pytest.mark.slow
def test_a_run_whose_machine_is_lost_is_resumed_from_its_mirror_bit_for_bit(
    finqa: Callable[..., WarmProcess], unbroken: Path, home: Path, tmp_path: Path
) -> None:
    run, mirror = tmp_path / "lost", f"--run-mirror=file://{tmp_path}/mirror"
    process = finqa("train", *SMALL, "--iterations=3", f"--run-dir={run}", mirror)
    events = run / "events.jsonl"
    wait_for(lambda: events.exists() and events.read_text().count('"mirrored"') >= 2, process)  # of steps 0 and 1
    process.kill()
    process.communicate()
    assert no_server_is_left(home)
    shutil.rmtree(run)
    finish(finqa("train", f"--resume={run}", mirror))
    resumed = json.loads((run / "run.json").read_text())["resumed"]
    assert [each["iteration"] for each in resumed] in ([1], [2])
    assert "mirrored" in {each["event"] for each in check_folder(run)["event"]}
    assert metrics(run) == metrics(unbroken)
    assert weights(run, 3) == weights(unbroken, 3)


@pytest.mark.slow  # above a run is killed and resumed; below it gets SIGUSR1
def test_a_run_that_is_queued_again_is_bit_for_bit_the_unbroken_run(
    finqa: Callable[..., WarmProcess], unbroken: Path, home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "queued"
    process = finqa("train", *SMALL, "--iterations=3", f"--run-dir={run}")
    played = run / "trajectories.jsonl"
    wait_for(lambda: played.exists() and played.read_text().count('"iteration": 2') > 2, process)
    for server in servers(home):  # SLURM sends it to all processes of a step
        os.kill(int(server), signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    _, errors = finish(process, expected=85)
    assert f"Next: finqa train --resume {run}" in errors
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert no_server_is_left(home)
    finish(finqa("train", f"--resume={run}"))
    assert metrics(run) == metrics(unbroken)
    assert weights(run, 3) == weights(unbroken, 3)


def test_the_first_ctrl_c_finishes_running_episodes_and_says_how_to_go_on(
    finqa: Callable[..., WarmProcess], home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "stopped"
    process = finqa("train", *SMALL, "--iterations=50", f"--run-dir={run}")
    wait_for((run / "checkpoints" / "step_0" / "manifest.json").exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = finish(process, expected=130)
    assert f"finqa train --resume {run}" in errors
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert no_server_is_left(home)


@pytest.mark.parametrize(
    ("numbers", "code"), [((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGTERM,), 143), ((signal.SIGUSR1,), 85)]
)
def test_two_ctrl_c_or_another_signal_end_it_and_leave_nothing_behind(
    finqa: Callable[..., WarmProcess],
    home: Path,
    tmp_path: Path,
    numbers: tuple[signal.Signals, ...],
    code: int,
) -> None:
    run = tmp_path / "ended"
    process = finqa("train", *SMALL, "--iterations=50", f"--run-dir={run}")
    wait_for(lambda: (run / "trajectories.jsonl").exists() and bool(servers(home)), process)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.3)
    finish(process, expected=code)
    assert no_server_is_left(home)


def test_a_run_can_be_evaluated_and_its_settings_are_followed(
    capsys: pytest.CaptureFixture[str], unbroken: Path, tmp_path: Path
) -> None:
    found = document(["eval", str(unbroken), "--limit=8", f"--run-dir={tmp_path / 'eval'}"], capsys)
    last = [record for record in metrics(unbroken) if record["kind"] == "eval"][-1]
    assert found["accuracy"] == last["accuracy"] and found["episodes"] == 8
    assert json.loads((tmp_path / "eval" / "report.json").read_text())["target"] == str(unbroken)
    assert len((tmp_path / "eval" / "items.csv").read_text().splitlines()) == 9


def test_a_resumed_run_takes_no_other_settings(capsys: pytest.CaptureFixture[str], unbroken: Path) -> None:
    for flag in ("--lora-rank=4", "--seed=0", "--disable-gradient-checkpointing", "--run-dir=elsewhere"):
        status, errors = failure(["train", f"--resume={unbroken}", flag], capsys)
        assert status == 2 and "keeps its settings" in errors
    status, errors = failure(["train", *SMALL, f"--run-dir={unbroken}"], capsys)
    assert status == 78 and "holds a run already" in errors


def test_a_run_is_not_resumed_on_other_data(capsys: pytest.CaptureFixture[str], unbroken: Path, tmp_path: Path) -> None:
    run = tmp_path / "moved"
    shutil.copytree(unbroken, run)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"snapshot digest": "sha256:other"}))
    assert main(["train", f"--resume={run}", "--iterations=4"]) == 78
    errors = capsys.readouterr().err
    assert "snapshot digest" in errors and "was started with sha256:other" in errors


@pytest.mark.slow
def test_an_engine_that_lags_behind_the_learner_is_resumed_lagging(
    finqa: Callable[..., WarmProcess], tmp_path: Path
) -> None:
    lagging = [*SMALL, "--sync-every=2", "--iterations=4", "--set", "train.keep_checkpoints=2"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(finqa("train", *lagging, f"--run-dir={whole}"))
    process = finqa("train", *lagging, f"--run-dir={broken}")
    wait_for((broken / "checkpoints" / "step_3" / "manifest.json").exists, process)
    process.kill()
    process.communicate()
    finish(finqa("train", f"--resume={broken}"))
    assert metrics(broken) == metrics(whole)
    assert weights(broken, 4) == weights(whole, 4)


@pytest.mark.slow
def test_killed_while_rollouts_run_ahead_and_resumed_it_trains_on_every_task_once(
    finqa: Callable[..., WarmProcess], home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "ahead"
    process = finqa("train", *SMALL, "--max-staleness=1", "--iterations=4", f"--run-dir={run}")
    played = run / "trajectories.jsonl"
    wait_for(lambda: played.exists() and played.read_text().count('"iteration": 3') > 2, process)
    process.kill()
    process.communicate()
    assert no_server_is_left(home)
    assert not (run / "checkpoints" / "step_3").exists(), "killed while groups were being played"
    (run / "policies" / "v00099").mkdir(parents=True)  # as a run leaves that continued long after its checkpoint
    finish(finqa("train", f"--resume={run}"))
    iterations = [record for record in metrics(run) if record["kind"] == "train"]
    assert [record["iteration"] for record in iterations] == [1, 2, 3, 4]
    oldest = [record["staleness_max"] for record in iterations if record["updates"]]
    assert max(oldest) == 1 and all(record["over_age"] == 0 for record in iterations)
    records = [json.loads(line) for line in played.read_text().splitlines()]
    trained = [record for record in records if record["phase"] == "train"]
    assert len({record["id"] for record in records}) == len(records)
    assert len(trained) == sum(record["episodes"] for record in iterations)
    groups = {tuple(record["id"].split("/")[1:3]): record["task"]["id"] for record in trained}
    state = json.loads((run / "checkpoints" / "step_4" / "state.json").read_text())
    assert state["unsettled"] == [] and state["cursor"] == len(groups) == len(set(groups.values()))
    newest = state["policy_version"]
    assert sorted(path.name for path in (run / "policies").iterdir()) == [f"v{newest - 1:05d}", f"v{newest:05d}"]
    check_folder(run)


@pytest.mark.slow
def test_demonstrations_teach_the_embedded_policy(finqa: Callable[..., WarmProcess], tmp_path: Path) -> None:
    demonstrations, run = tmp_path / "demonstrations", tmp_path / "sft"
    finish(finqa("eval", "scripted", "--split=dev", "--limit=24", f"--run-dir={demonstrations}", "--sandboxes=8"))
    output, _ = finish(
        finqa("sft", str(demonstrations), "--model=embedded", "--epochs=4", "--lr=2e-3", f"--run-dir={run}", "--json")
    )
    taught = json.loads(output)
    losses = [record["loss"] for record in metrics(run) if record["kind"] == "sft"]
    assert losses[-1] < 0.7 * losses[0]
    assert taught["policy"] == str(run / "checkpoints" / "final") and taught["validation_loss"] is not None
    assert taught["parse_rate"] > 0.9 and taught["after"]["samples"]["questions"] == 16
    finish(finqa("eval", taught["policy"], "--limit=2", f"--run-dir={tmp_path / 'eval'}"))
