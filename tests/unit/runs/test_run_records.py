from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.written_runs import begin

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.errors import ConfigError, DataError, StorageError
from finqa_cli.runs import checkpoints
from finqa_cli.runs.jsonl import JsonlWriter, read_jsonl, rewind
from finqa_cli.runs.run_folder import RunFolder, new_run_path, read_run
from finqa_cli.runs.run_summary import summarize_run
from finqa_cli.runs.trajectory_records import read_demonstrations
from finqa_cli.types import Message, Observation, Rewards, Status, Task, ToolCall, ToolSpec, Trajectory, Turn


def trajectory(reward: float | None = 1.0) -> Trajectory:
    call = ToolCall(name="submit_answer", arguments={"answer": "42"})
    turn = Turn(
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        text="<tool_call>...",
        tool_call=call,
        observation=Observation(text="Answer submitted: 42", done=True),
    )
    return Trajectory(
        id="train/1/q/0",
        task=Task(id="q", prompt="What?", split="train", cluster="acme", kind="lookup"),
        member=0,
        seed=7,
        status=Status.COMPLETED if reward is not None else Status.SANDBOX_ERROR,
        turns=(turn,),
        messages=(Message(role="user", content="What?"),),
        tools=(ToolSpec(name="submit_answer", description="Submit.", parameters={"type": "object"}),),
        rewards=None if reward is None else Rewards(total=reward, explanation="right"),
    )


def test_a_torn_last_line_is_cut_on_opening_and_passed_over_on_reading(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    path = tmp_path / "x.jsonl"
    writer = JsonlWriter(path)
    writer.append({"n": 1})
    writer.append({"n": 2})
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"n": 3, "torn')
    assert [record["n"] for record in read_jsonl(path)] == [1, 2]
    again = JsonlWriter(path)
    again.append({"n": 4})
    again.close()
    assert [record["n"] for record in read_jsonl(path)] == [1, 2, 4]
    assert all(record["schema_version"] == 1 for record in read_jsonl(path))


@pytest.mark.parametrize("content", [b"", b"torn", b'{"a": 1}\n' * 20_000 + b'{"b'])
def test_only_the_torn_tail_goes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    JsonlWriter(path).close()
    assert path.read_bytes() == content[: content.rfind(b"\n") + 1]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\nnonsense\n{"n": 2}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_jsonl(path))


def test_a_full_disk_is_a_storage_error_and_earlier_records_stay(tmp_path: Path) -> None:
    # RLIMIT_FSIZE makes the kernel cut writes short exactly as a full disk does; it needs a process of its own.
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from finqa_cli.errors import StorageError
        from finqa_cli.runs.jsonl import JsonlWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        writer = JsonlWriter(Path(sys.argv[1]))
        try:
            for n in range(100):
                writer.append({"n": n, "fill": "x" * 300})
        except StorageError as error:
            print(n, error.exit_code)
        """
    )
    path = tmp_path / "x.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    failed_at, code = map(int, done.stdout.split())
    assert code == 74 and resource.RLIMIT_FSIZE is not None
    assert [record["n"] for record in read_jsonl(path)] == list(range(failed_at))
    assert path.read_bytes().endswith(b"\n")


def test_rewinding_sets_later_records_aside_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    for iteration in range(5):
        writer.append({"iteration": iteration})
    writer.close()
    assert rewind(path, lambda record: record["iteration"] <= 2) == 2
    assert [record["iteration"] for record in read_jsonl(path)] == [0, 1, 2]
    assert [record["iteration"] for record in read_jsonl(tmp_path / "metrics.superseded.jsonl")] == [3, 4]


def test_a_run_folder_says_what_became_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunFolder.create(run, command="train", settings={"a": 1}, save_token_ids=False) as folder:
        assert read_run(run)["status"] == "running"
        folder.trajectory(trajectory(), phase="train", iteration=1)
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            RunFolder.reopen(run, settings={}, save_token_ids=False, iteration=0)
        folder.finish("completed")
    assert read_run(run)["status"] == "completed"
    assert json.loads((run / "settings.json").read_text()) == {"a": 1}
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(run, command="train", settings={}, save_token_ids=False)
    failed = tmp_path / "failed"
    with pytest.raises(RuntimeError), RunFolder.create(failed, command="x", settings={}, save_token_ids=False):
        raise RuntimeError
    assert read_run(failed)["status"] == "failed"


def test_token_ids_are_written_only_on_request(tmp_path: Path) -> None:
    for wanted in (False, True):
        run = tmp_path / str(wanted)
        with RunFolder.create(run, command="train", settings={}, save_token_ids=wanted) as folder:
            folder.trajectory(trajectory(), phase="train", iteration=1)
        turn = next(read_jsonl(run / "trajectories.jsonl"))["turns"][0]
        assert ("completion_token_ids" in turn) is wanted
        assert turn["completion_tokens"] == 1


def test_recorded_trajectories_come_back_as_demonstrations(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunFolder.create(run, command="eval", settings={}, save_token_ids=False) as folder:
        folder.trajectory(trajectory(), phase="eval", iteration=0)
        folder.trajectory(trajectory(None), phase="eval", iteration=0)
    (demonstration,) = read_demonstrations(run)
    assert [message.role for message in demonstration.messages] == ["assistant", "tool"]
    assert demonstration.messages[0].tool_call == trajectory().turns[0].tool_call
    assert demonstration.prompt.tools == trajectory().tools
    with pytest.raises(DataError, match="no demonstrations"):
        read_demonstrations(tmp_path / "nowhere")


def test_demonstrations_come_as_they_were_dealt_not_as_they_ended(tmp_path: Path) -> None:
    played = [("train/1/q/2", 1, 2), ("train/1/q/10", 1, 10), ("train/2/q/0", 2, 0)]
    with RunFolder.create(tmp_path / "run", command="train", settings={}, save_token_ids=False) as folder:
        for name, iteration, member in reversed(played):
            ended = replace(trajectory(), id=name, member=member)
            folder.trajectory(ended, phase="train", iteration=iteration)
    assert [each.id for each in read_demonstrations(tmp_path / "run")] == [name for name, _, _ in played]
    log = tmp_path / "run" / "trajectories.jsonl"
    log.write_text(log.read_text().replace('"iteration": 1', '"iteration": "x"'))
    with pytest.raises(DataError, match="row 2: not a trajectory record"):
        read_demonstrations(tmp_path / "run")


def test_the_words_before_a_call_come_back_beside_it(tmp_path: Path) -> None:
    (bare,) = trajectory().turns
    spoken = replace(bare, text="<think>\nhm\n</think>\n\nSo: <tool_call>...", words="<think>\nhm\n</think>\n\nSo:")
    with RunFolder.create(tmp_path / "run", command="eval", settings={}, save_token_ids=False) as folder:
        folder.trajectory(replace(trajectory(), turns=(spoken, bare)), phase="eval", iteration=0)
    (demonstration,) = read_demonstrations(tmp_path / "run")
    said = [message.content for message in demonstration.messages if message.role == "assistant"]
    assert said == [spoken.words, ""]
    (record,) = read_jsonl(tmp_path / "run" / "trajectories.jsonl")
    assert ["words" in turn for turn in record["turns"]] == [True, False]


def test_saved_token_ids_give_the_sequences_of_the_episode_again(tmp_path: Path) -> None:
    (first,) = trajectory().turns
    forked = replace(first, prompt_ids=(1, 2, 9), restarts=True, completion_ids=(4, 5), logprobs=(-1.0, -2.0))
    turns = (first, replace(first, prompt_ids=(7,)), forked)
    with RunFolder.create(tmp_path / "run", command="train", settings={}, save_token_ids=True) as folder:
        folder.trajectory(replace(trajectory(), turns=turns), phase="train", iteration=1)
    (record,) = read_jsonl(tmp_path / "run" / "trajectories.jsonl")
    assert ["restarts" in turn for turn in record["turns"]] == [False, False, True]
    read = tuple(
        Turn(
            prompt_ids=tuple(turn["prompt_token_ids"]),
            restarts=turn.get("restarts", False),
            completion_ids=tuple(turn["completion_token_ids"]),
            logprobs=tuple(turn["logprobs"]),
        )
        for turn in record["turns"]
    )
    again = replace(trajectory(), turns=read)
    assert trajectory_samples(again, 1.0) == trajectory_samples(replace(again, turns=turns), 1.0)
    assert [sample.token_ids.tolist() for sample in trajectory_samples(again, 1.0)] == [
        [1, 2, 3, 7, 3],
        [1, 2, 9, 4, 5],
    ]


def test_new_run_paths_do_not_collide(tmp_path: Path) -> None:
    first = new_run_path(tmp_path)
    first.mkdir()
    others = {new_run_path(tmp_path), new_run_path(tmp_path)}
    assert len(others) == 2 and first not in others, "also before the folder of one is there"


def write_checkpoint(run: Path, iteration: int) -> Path:
    with checkpoints.writing(run, iteration, {"cursor": 3, "policy_version": 1}) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights.bin").write_bytes(bytes([iteration]) * 100)
    return checkpoints.folder_of(run, iteration)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize("name", ["policy/weights.bin", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, name: str, damage: object) -> None:
    write_checkpoint(tmp_path, 1)
    newest = write_checkpoint(tmp_path, 2)
    found = checkpoints.latest(tmp_path)
    assert found is not None and (found.iteration, found.state["cursor"]) == (2, 3)
    damage(newest / name)  # type: ignore[operator]
    if name == "manifest.json" and damage is truncate:
        return  # only the last newline went; the manifest still says everything
    with pytest.raises(DataError, match="step_2"):
        checkpoints.verified(newest)
    found = checkpoints.latest(tmp_path)
    assert found is not None and found.iteration == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": {}}, "does not list policy/weights.bin"),
        ({"schema_version": 2}, "schema version 2"),
        ({"files": None}, "damaged"),
        ({"schema_version": None}, "schema version None"),
    ],
)
def test_a_manifest_has_to_list_every_file(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    folder = write_checkpoint(tmp_path, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(DataError, match=reason):
        checkpoints.verified(folder)


def test_a_file_that_the_manifest_does_not_know_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 1)
    (folder / "policy" / "other.bin").write_bytes(b"weights of another run")
    with pytest.raises(DataError, match=r"does not list policy/other\.bin"):
        checkpoints.verified(folder)


def test_a_checkpoint_is_deleted_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for iteration in (1, 2, 3):
        write_checkpoint(tmp_path, iteration)
    monkeypatch.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)  # killed before the first file is gone
    checkpoints.prune(tmp_path, 2)
    monkeypatch.undo()
    assert checkpoints.iterations(tmp_path) == [2, 3]
    assert [checkpoints.verified(folder).iteration for folder in sorted((tmp_path / "checkpoints").glob("step_*"))]
    left = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == [".step_1.removed"]
    write_checkpoint(tmp_path, 4)
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]


def test_a_failed_write_leaves_no_checkpoint_and_pruning_keeps_the_newest(tmp_path: Path) -> None:
    with pytest.raises(StorageError), checkpoints.writing(tmp_path, 1, {}):
        raise StorageError("disk full")
    assert checkpoints.latest(tmp_path) is None and list((tmp_path / "checkpoints").iterdir()) == []
    for iteration in (1, 2, 10):
        write_checkpoint(tmp_path, iteration)
    checkpoints.prune(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "latest_checkpointed_iteration.txt",
        "step_10",
        "step_2",
    ]


def test_the_tree_says_which_checkpoint_is_the_newest(tmp_path: Path) -> None:
    pointer = tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt"
    for iteration in (2, 10):
        write_checkpoint(tmp_path, iteration)
        assert pointer.read_text() == str(iteration), "as verl writes it: the number alone"
    assert checkpoints.iterations(tmp_path) == [2, 10]
    checkpoints.discard_after(tmp_path, 2)
    assert pointer.read_text() == "2"
    checkpoints.discard_after(tmp_path, -1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_run_of_a_checkout_names_its_commit(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", command="eval", settings={}, save_token_ids=False) as run:
        run.finish("completed")
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    if asked.returncode:
        pytest.skip("the tests are in no git checkout")
    assert read_run(tmp_path / "run")["commit"].removesuffix("-dirty") == asked.stdout.strip()


def test_the_duration_of_a_run_does_not_follow_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with begin(run, "train", iterations=1) as folder:
        time.sleep(0.05)
        folder.finish("interrupted")
    facts = json.loads((run / "run.json").read_text())
    assert 0.05 <= facts["seconds"] < 60
    (run / "run.json").write_text(json.dumps({**facts, "finished": "1999-01-01T00:00:00+00:00"}))
    assert summarize_run(run).seconds == facts["seconds"], "the clock was set back while it ran"
    with RunFolder.reopen(run, settings={}, save_token_ids=False, iteration=0) as folder:
        time.sleep(0.05)
        folder.finish("completed")
    assert json.loads((run / "run.json").read_text())["seconds"] >= facts["seconds"] + 0.05
    crashed = {**json.loads((run / "run.json").read_text()), "status": "running", "pid": 2**22 + 1}
    (run / "run.json").write_text(json.dumps(crashed))
    with RunFolder.reopen(run, settings={}, save_token_ids=False, iteration=0) as folder:
        folder.finish("completed")
    assert json.loads((run / "run.json").read_text())["seconds"] is None
