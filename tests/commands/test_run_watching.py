"""`finqa top`: a run is followed through its files."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.written_runs import begin, killed_run, write_evaluation

from finqa_cli.app import main
from finqa_cli.commands.recorded import watch_run
from finqa_cli.commands.recorded.show_run import event_text
from finqa_cli.runs.live_run import LiveRun
from finqa_cli.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("_warm_commands", "empty_folder")


@pytest.fixture(autouse=True)
def _wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def iterate(folder: RunFolder, number: int) -> None:
    """One more iteration of 30 s with 40 episodes and 6,000 tokens."""
    facts = {"episodes": 40, "faults": 0, "reward_mean": number / 10, "tokens": 9000, "loss_tokens": 6000}
    timing = {"rollout_s": 20.0, "update_s": 10.0, "iteration_s": 30.0}
    folder.metrics({"kind": "train", "iteration": number, **facts, "timing": timing})


def pool(folder: RunFolder, at: float, **facts: int) -> None:
    """An event of the pool at a time."""
    line = json.dumps({"event": "pool", "time": at, "size": 500, "starting": 0, "idle": 0, "leased": 0, **facts})
    with (folder.path / "events.jsonl").open("a") as file:
        file.write(line + "\n")


def test_a_running_training_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train", planned=10) as folder:
        live = LiveRun(folder.path)
        assert live.look(0.0).phase == "starting"
        for number in (1, 2):
            iterate(folder, number)
        pool(folder, 1000.0, leased=400, idle=100, waiting=7)
        pool(folder, 1036.0, leased=0, starting=20, lost=20)
        folder.event("sandbox_lost", sandbox="local-1", reason="it does not answer").result()
        folder.event("weights", version=2, load_s=0.2, sync_bytes=629744, probe_s=7e-06).result()
        state = live.look(10.0)
        assert state.phase == "starting sandboxes" and state.remaining_s == 8 * 30
        assert state.sampled_tokens == 12_000 and state.tokens_per_second == 200
        assert state.phases == {"rollout_s": 20, "update_s": 10, "iteration_s": 30} and state.rewards == (0.1, 0.2)
        assert state.sandbox_hours == 5.0 and state.sandboxes["lost"] == 20 and state.engine["version"] == 2
        assert state.troubles == {"sandbox_lost": 1}
        assert event_text(state.engine).endswith("weights: version 2, load 200 ms, sync 630 kB, probe <1 ms")
        folder.event("engine_away", version=2, reason="no answer").result()
        assert live.look(11.0).phase == "waiting for the engine"
        assert main(["top", "one", "--once"]) == 0
        text = capsys.readouterr().out
        for part in ("running, iteration 2 of 10", "2 of 10 iterations  4 min to go", "80 a minute", "0.200  ▁█"):
            assert part in text, text
        assert "12,000 sampled tokens, 18,000 trained tokens, 5.00 sandbox hours" in text
        assert "sandbox_lost: sandbox local-1" in text and "size 500" in text


def test_episodes_are_counted_over_the_last_minute() -> None:
    with begin(Path("runs/one"), "eval") as folder:
        folder.plan(300)
        live = LiveRun(folder.path)
        for second in range(0, 101, 5):
            with (folder.path / "trajectories.jsonl").open("a") as file:
                file.write('{"id": 1}\n' * 10 + '{"torn')
            with (folder.path / "trajectories.jsonl").open("a") as file:
                file.write('"}\n')
            state = live.look(float(second))
        assert state.episodes == 21 * 11 and state.episodes_per_minute == 11 * 12
        assert state.remaining_s == pytest.approx((300 - 231) / 132 * 60)


def test_a_resumed_run_is_followed_from_its_checkpoint() -> None:
    with begin(Path("runs/one"), "train", iterations=5) as folder:
        live = LiveRun(folder.path)
        assert len(live.look(0.0).rewards) == 5
        folder.finish("interrupted")
    with RunFolder.reopen(Path("runs/one"), settings={}, save_token_ids=False, iteration=3):
        assert len(live.look(10.0).rewards) == 3


def test_finished_and_crashed_runs_show_one_frame(capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(Path("runs/killed"), "train", iterations=7)
    write_evaluation(Path("runs/done"), 0.5)
    assert main(["top", "killed"]) == 0
    assert "crashed at iteration 7 of 24" in capsys.readouterr().out
    found: dict[str, Any] = document(["top", "done"], capsys)
    assert found["phase"] == "" and found["remaining_s"] is None and found["episodes"] == 3
    assert failure(["top", "elsewhere"], capsys)[0] == 65


def test_texts_in_events_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with begin(Path("runs/one"), "train") as folder:
        folder.event("sandbox_lost", reason="\x1b[2J\x07 [bold]gone[/bold]").result()
        assert main(["top", "one", "--once"]) == 0
    text = capsys.readouterr().out
    assert "\\x1b[2J\\x07 [bold]gone[/bold]" in text and "\x1b" not in text


def test_it_ends_with_the_run_on_a_terminal() -> None:
    folder = begin(Path("runs/one"), "train", iterations=2)
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "finqa_cli", "top", "runs/one"]
    with folder, subprocess.Popen(command, stdout=child, stderr=child, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(child)
        seen = b""
        while b"iteration 2 of 24" not in seen:
            seen += os.read(parent, 65536)
        folder.finish("completed")

        def drain() -> None:
            nonlocal seen
            try:
                while block := os.read(parent, 65536):
                    seen += block
            except OSError:  # the other end is closed
                return

        reader = threading.Thread(target=drain)
        reader.start()
        assert process.wait(timeout=60) == 0
        reader.join()
    os.close(parent)
    assert b"completed" in seen and seen.rstrip().endswith(b"\x1b[?25h"), "the cursor is back"


def test_a_frame_of_500_sandboxes_takes_less_than_a_twentieth_of_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second there are 50 episodes of 20 kB, a state of the pool and a lost sandbox."""
    from rich.console import Console

    monkeypatch.setenv("COLUMNS", "120")
    screen = Console(file=io.StringIO(), force_terminal=True)
    episode = json.dumps({"id": "x", "text": "y" * 20_000}) + "\n"
    with begin(Path("runs/one"), "train", planned=1000) as folder:
        for number in range(1, 200):
            iterate(folder, number)
        for number in range(500):
            folder.event("sandbox_ready", sandbox=f"sandbox-{number}", seconds=1.0).result()
        live = LiveRun(folder.path)
        live.look(0.0)
        spent = 0.0
        seconds = 20
        for second in range(1, seconds + 1):
            with (folder.path / "trajectories.jsonl").open("a") as file:
                file.write(episode * 50)
            pool(folder, 1000.0 + second, leased=490, idle=10)
            folder.event("sandbox_lost", sandbox=f"sandbox-{second}", reason="it does not answer").result()
            begun = time.process_time()
            screen.print(watch_run.frame(live.look(float(second))))
            spent += time.process_time() - begun
    assert spent / seconds < 0.05, f"{spent / seconds:.3f} s of each second"
