"""The Python interface does what the commands do: equal files, callbacks, event loops, Ctrl-C, resumed runs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.left_processes import processes_of

import finqa
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import read_run

pytestmark = pytest.mark.usefixtures("empty_folder")

TIMES = {"seconds", "created", "time", "finished"}


def read(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    turns = [{name: value for name, value in turn.items() if name not in TIMES} for turn in record["turns"]]
    return {**{name: value for name, value in record.items() if name not in TIMES}, "turns": turns}


def test_an_evaluation_is_that_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--split=test", "--limit=8", "--sandboxes=2", "--seed=5", "--set=environment.options.grader=strict"]
    printed = document(["eval", "random", *flags, "--run-dir=theirs"], capfd)
    capfd.readouterr()
    ours = finqa.evaluate(
        "random",
        split="test",
        limit=8,
        sandboxes=2,
        seed=5,
        settings={"environment.options.grader": "strict"},
        run_dir="ours",
    )
    assert capfd.readouterr() == ("", ""), "callbacks instead of terminal output"
    of_the_command = ("target", "run", "graded_otherwise_by_strict")
    assert ours.report == {name: value for name, value in printed.items() if name not in of_the_command}
    assert (ours.accuracy, ours.interval, ours.n) == (printed["accuracy"], tuple(printed["accuracy_interval"]), 8)
    for name in ("report.json", "metrics.json"):
        assert Path("ours", name).read_bytes() == Path("theirs", name).read_bytes()
    settings = read("ours/settings.json"), read("theirs/settings.json")
    for each in settings:
        each["run"].pop("dir")
    assert settings[0] == settings[1]
    manifests = read("ours/manifest.json"), read("theirs/manifest.json")
    assert manifests[0]["parameters"] == manifests[1]["parameters"] and manifests[0]["inputs"] == manifests[1]["inputs"]
    records = [
        sorted(map(without_times, read_jsonl(Path(run, "trajectories.jsonl"))), key=lambda one: one["id"])
        for run in ("ours", "theirs")
    ]
    assert records[0] == records[1]


def test_callbacks_get_each_episode_once_it_is_on_disk() -> None:
    seen: list[finqa.Episode] = []
    shown: list[finqa.Progress] = []

    def on_episode(episode: finqa.Episode) -> None:
        recorded = {record["id"]: record for record in read_jsonl(Path("run/trajectories.jsonl"))}
        assert recorded[episode.id] == json.loads(json.dumps(episode.record))
        assert threading.current_thread() is threading.main_thread()
        seen.append(episode)

    result = finqa.evaluate(
        "random", limit=5, sandboxes=2, run_dir="run", on_episode=on_episode, on_progress=shown.append
    )
    assert {each.id for each in seen} == {each.id for each in result.run.episodes} and len(seen) == 5
    plays = [each for each in shown if each.phase == "eval"]
    assert [each.done for each in plays] == [0, 1, 2, 3, 4, 5, 5] and plays[-1].ended and plays[0].total == 5


def test_an_error_of_a_callback_ends_the_run_and_is_raised_and_the_same_call_continues() -> None:
    messages: list[str] = []

    for error in (StopIteration("enough"), PermissionError(errno.EACCES, "not allowed", "mine.txt")):

        def stop(episode: finqa.Episode, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            finqa.evaluate("scripted", limit=6, sandboxes=1, run_dir="run", on_episode=stop)
        assert caught.value is error, "it is not explained as one of finqa's own"
        assert read_run(Path("run"))["status"] == "interrupted"
    before = list(read_jsonl(Path("run/trajectories.jsonl")))
    assert 1 < len(before) < 6
    result = finqa.evaluate("scripted", limit=6, sandboxes=1, run_dir="run", on_message=messages.append)
    assert result.n == 6 and [each.record for each in result.run.episodes][: len(before)] == before
    assert any("is resumed; fresh=True" in message for message in messages)
    with pytest.raises(finqa.UsageError, match="is already finished"):
        result.run.resume()


def test_too_many_faults_are_an_error_with_the_reason() -> None:
    Path("gone.py").write_text(
        "def tasks():\n    return [{'prompt': str(n), 'split': 'dev'} for n in range(4)]\n"
        "def reset():\n    raise ConnectionError('the database is gone')\n"
        "def reward(answer):\n    return 0\n"
    )
    few: Any = {"limit": 2, "max_play_retries": 0, "environment": "gone.py"}
    with pytest.raises(
        finqa.ThresholdError, match=r"2 of 2 episodes ended in faults, 2 with this error: reset of gone\.py"
    ):
        finqa.evaluate("random", **few, run_dir="run")
    result = finqa.evaluate("random", **few, run_dir="lenient", settings={"pool.max_fault_share": 1.0})
    assert (result.accuracy, result.interval, result.n, result.faults) == (None, None, 0, 2)
    assert [each.correct for each in result.run.episodes] == [None, None]


async def test_the_asynchronous_form_runs_in_the_loop_of_the_caller() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    loops: list[asyncio.AbstractEventLoop] = []
    beside = asyncio.create_task(tick())
    first, second = await asyncio.gather(
        finqa.evaluate_async(
            "scripted", limit=3, sandboxes=1, on_episode=lambda _: loops.append(asyncio.get_running_loop())
        ),
        finqa.evaluate_async("scripted", limit=3, sandboxes=1, seed=1),
    )
    beside.cancel()
    assert first.accuracy == second.accuracy == 1.0 and first.run.path != second.run.path and ticks > 10
    assert set(loops) == {asyncio.get_running_loop()}


async def test_a_cancelled_one_cleans_up_and_can_be_resumed() -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(
        finqa.evaluate_async("scripted", limit=24, sandboxes=1, run_dir="run", on_episode=lambda _: begun.set())
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert read_run(Path("run"))["status"] == "interrupted"
    assert (await finqa.evaluate_async(resume="run")).n == 24


async def test_the_synchronous_form_works_inside_a_running_loop() -> None:
    threads: set[str] = set()
    result = finqa.evaluate(
        "scripted", limit=3, sandboxes=1, on_episode=lambda _: threads.add(threading.current_thread().name)
    )
    assert result.accuracy == 1.0 and threads == {"finqa"}
    with pytest.raises(finqa.UsageError, match="no argument 'limt'"):
        finqa.evaluate("scripted", **{"limt": 3})  # type: ignore[arg-type]


def test_it_runs_in_a_thread_and_leaves_the_handlers_of_the_program() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    results: list[finqa.Evaluation] = []
    thread = threading.Thread(target=lambda: results.append(finqa.evaluate("scripted", limit=2, sandboxes=1)))
    thread.start()
    thread.join()
    finqa.evaluate("scripted", limit=2, sandboxes=1)
    assert results[0].n == 2
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


PROGRAM = """
    import asyncio, finqa

    def show(episode):
        print(episode.id, flush=True)

    def evaluate():
        try:
            finqa.evaluate("scripted", limit=200, sandboxes=2, run_dir="run", on_episode=show)
        except finqa.InterruptedRun as error:
            print("stopped:", error, error.remedy, flush=True)

    async def in_a_loop():
        evaluate()

    async def awaited():
        await finqa.evaluate_async("scripted", limit=200, sandboxes=2, run_dir="run", on_episode=show)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "form",
    [
        "evaluate()",
        *(pytest.param(f"asyncio.run({each}())", marks=pytest.mark.slow) for each in ("in_a_loop", "awaited")),
    ],
)
def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_no_process(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("home").absolute()  # which tells servers of this test from those of others
    monkeypatch.setenv("FINQA_HOME", str(home))
    Path("program.py").write_text(f"{textwrap.dedent(PROGRAM)}\n{form}\n")
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline().startswith("eval/")
    assert len(processes_of(process.pid, home)) > 1, "there are servers that can be left"
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    if form == "asyncio.run(awaited())":
        assert process.returncode != 0 and "KeyboardInterrupt" in errors
    else:
        assert process.returncode == 0 and "stopped: Stopped by SIGINT. finqa eval --resume run" in said, errors
    assert read_run(Path("run"))["status"] == "interrupted"
    assert wait_for_end(process.pid, home), "processes are left"
    before = list(read_jsonl(Path("run/trajectories.jsonl")))
    assert 0 < len(before) < 200
    resumed = finqa.load_run("run").resume()
    assert resumed.n == 200 and [each.record for each in resumed.run.episodes][: len(before)] == before


def wait_for_end(session: int, home: Path) -> bool:
    """Returns whether every process of a session, and every server that it started, has ended."""
    deadline = time.monotonic() + 20
    while processes_of(session, home):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_samples_are_those_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    printed = document(["sample", "random", "-k", "3", "--limit=2", "--sandboxes=2", "--run-dir=theirs"], capfd)
    ours = finqa.sample("random", num_candidates=3, limit=2, sandboxes=2, run_dir="ours")
    assert ours.report == {name: value for name, value in printed.items() if name not in ("run", "seconds")}
    assert (ours.candidates, ours.questions) == (6, 2) and ours.scores_path.is_file()
    assert [line["id"] for line in read_jsonl(ours.candidates_path)] == [
        line["id"] for line in read_jsonl(Path("theirs/candidates.jsonl"))
    ]
    assert len(ours.run.episodes) == 6


TRAINING: dict[str, Any] = {
    "model": "embedded",
    "iterations": 1,
    "group_size": 2,
    "target_groups_per_iter": 2,
    "max_rollout_rounds": 2,
    "sandboxes": 2,
    "limit": 4,
    "preflight": False,
}


@pytest.mark.thorough
def test_a_training_is_that_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TRAINING.items() if name != "preflight"]
    printed = document(["train", *flags, "--no-preflight", "--run-dir=theirs"], capfd)
    episodes: list[finqa.Episode] = []
    ours = finqa.train(**TRAINING, run_dir="ours", on_episode=episodes.append)
    for name in ("before", "after"):
        assert getattr(ours, name) == printed[name]
    assert (ours.iterations, ours.accuracy_after) == (printed["iterations"], printed["after"]["accuracy"])
    (trained,) = ours.run.metrics.where(kind="train")
    (theirs,) = finqa.load_run("theirs").metrics.where(kind="train")
    same = {name for name, value in trained.items() if not isinstance(value, float) or theirs[name] == value}
    assert {"reward_mean", "loss", "episodes", "informative"} <= same
    assert {each.id for each in episodes} == {each.id for each in ours.run.episodes}
    finished = finqa.train(resume="ours")
    assert finished.was_finished and finished.iterations == 1
    assert finqa.train(resume="ours", iterations=2).iterations == 2
    with pytest.raises(finqa.UsageError, match="does not take lr"):
        finqa.train(resume="ours", lr=0.1)
    with pytest.raises(finqa.ConfigError, match="is a run of `finqa train`"):
        finqa.evaluate(resume="ours")
