"""What `finqa gc` would delete, and what it never does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.written_runs import begin, killed_run, write_evaluation

from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import write_json
from finqa_cli.runs.leftovers import delete_leftovers, find_leftovers
from finqa_cli.runs.run_folder import RunFolder, process_facts, write_manifest

pytestmark = pytest.mark.usefixtures("empty_folder")


def write_checkpoints(run: Path, count: int) -> None:
    """Checkpoints as a trainer writes them, each with two files."""
    for number in range(1, count + 1):
        with checkpoints.writing(run, number, {"policy_version": number, "model": "embedded"}) as folder:
            (folder / "policy").mkdir()
            (folder / "policy" / "weights").write_bytes(bytes([number]) * 5000)


def trained(path: Path, *, count: int = 3, status: str = "completed") -> Path:
    """A run with checkpoints that ended so."""
    with begin(path, "train", iterations=count) as folder:
        write_checkpoints(path, count)
        folder.finish(status)
    return path


def ended_pid() -> int:
    """The pid of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


def found(folder: str = "runs", keep: int = 1) -> list[str]:
    """The paths of what is found."""
    return sorted(str(each.path) for each in find_leftovers(Path(folder), keep=keep)[0])


@pytest.mark.parametrize("status", ["completed", "failed", "interrupted"])
def test_checkpoints_beyond_the_newest_go_whole(status: str) -> None:
    run = trained(Path("runs/one"), status=status)
    assert found() == ["runs/one/checkpoints/step_1", "runs/one/checkpoints/step_2"]
    assert found(keep=2) == ["runs/one/checkpoints/step_1"] and found(keep=3) == []
    items, notes = find_leftovers(Path("runs"), keep=1)
    assert notes == [] and all(each.size >= 5000 for each in items)
    deleted, notes = delete_leftovers(items)
    assert deleted == items and notes == [] and found() == []
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [checkpoints.LATEST, "step_3"]
    kept = checkpoints.latest(run)
    assert kept is not None and kept.iteration == 3
    assert (run / "checkpoints" / checkpoints.LATEST).read_text() == "3"


def test_the_newest_that_can_be_loaded_stays() -> None:
    run = trained(Path("runs/one"), count=4)
    for step in (3, 4):
        (run / f"checkpoints/step_{step}/policy/weights").write_text("damaged")
    assert found() == ["runs/one/checkpoints/step_1"]
    (run / "checkpoints/step_2/policy/weights").unlink()
    assert found() == [], "step 1 is the only one"
    (run / "checkpoints/step_1/state.json").unlink()
    assert found() == [], "none can be loaded, so a person has to look"


def test_nothing_of_a_running_run_is_touched() -> None:
    with begin(Path("runs/one"), "train", iterations=3) as folder:
        write_checkpoints(folder.path, 3)
        Path(f"runs/one/.run.json.{ended_pid()}").write_text("x")
        items, notes = find_leftovers(Path("runs"), keep=1)
        assert items == [] and notes == ["runs/one is running, so none of its files are deleted"]
    write_json(Path("runs/one/run.json"), {"command": "train", "status": "running", "host": "elsewhere", "pid": 1})
    assert find_leftovers(Path("runs"), keep=1) == ([], ["runs/one is unknown, so none of its files are deleted"])
    Path("runs/one/run.json").write_text("{")
    assert found() == []


def test_a_run_that_is_resumed_meanwhile_is_skipped() -> None:
    run = trained(Path("runs/one"), status="interrupted")
    items, _ = find_leftovers(Path("runs"), keep=1)
    with RunFolder.reopen(run, settings={}, save_token_ids=False, iteration=3):
        deleted, notes = delete_leftovers(items)
    assert deleted == [] and "runs/one is in use by process" in notes[0]
    assert checkpoints.iterations(run) == [1, 2, 3]


def test_steps_of_a_running_pipeline_are_untouched_from_everywhere() -> None:
    trained(Path("outputs/whole/04_train"))
    facts = {"command": "pipeline", "created": "2026-11-25T01:00:00+00:00", "steps": {}, "parameters": {}}
    write_json(Path("outputs/whole/run.json"), {**facts, "status": "running", **process_facts()})
    for folder in ("outputs", "outputs/whole", "outputs/whole/04_train"):
        items, notes = find_leftovers(Path(folder), keep=1)
        assert items == [] and "outputs/whole" in notes[0] and "running" in notes[0]
    write_json(Path("outputs/whole/run.json"), {**facts, "status": "failed"})
    assert found("outputs") == [f"outputs/whole/04_train/checkpoints/step_{step}" for step in (1, 2)]


def test_what_other_runs_or_the_manifest_name_stays(tmp_path: Path) -> None:
    run = trained(Path("runs/one"), count=5)
    write_evaluation(Path("runs/eval"), 0.5)
    with RunFolder.create(Path("outputs/other"), command="eval", settings={}, save_token_ids=False) as folder:
        folder.link("runs/one/checkpoints/step_1")
        folder.finish("completed")
    policy = {"model": str(tmp_path / "runs/one/checkpoints/step_2/policy"), "adapter": None}
    write_manifest(Path("runs/eval"), "eval", parameters={}, inputs={"policy": policy})
    write_manifest(run, "train", parameters={}, inputs={}, outputs=[run / "checkpoints/step_3/policy/weights"])
    assert found() == ["runs/one/checkpoints/step_4"]


def test_what_killed_processes_left() -> None:
    killed_run(Path("runs/killed"), "train", iterations=1)
    run, dead, alive = Path("runs/killed"), ended_pid(), os.getpid()
    write_checkpoints(run, 1)
    left = [f".run.json.{dead}", f"checkpoints/.step_2.{dead}.partial/policy/x", "checkpoints/.step_0.removed/y"]
    left += ["policies/v00003/model", "policies/.v00002.removed/model"]
    kept = [f".metrics.jsonl.{alive}", "policies/mine/model", ".hidden", f".folder.{dead}/z", "policies/v1/m"]
    for name in (*left, *kept):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    items, _ = find_leftovers(Path("runs"), keep=1)
    assert sorted(str(each.path.relative_to(run)) for each in items) == [
        f".run.json.{dead}",
        "checkpoints/.step_0.removed",
        f"checkpoints/.step_2.{dead}.partial",
        "policies/.v00002.removed",
        "policies/v00003",
    ]
    delete_leftovers(items)
    assert found() == [] and all((run / name).exists() for name in kept)
    assert checkpoints.iterations(run) == [1] and json.loads((run / "run.json").read_text())["command"] == "train"


def test_temporary_folders_beside_runs_go_when_they_are_old() -> None:
    path = Path(f"runs/.pairs.{ended_pid()}.partial")
    path.mkdir(parents=True)
    assert found() == []
    os.utime(path, (time.time() - 7200,) * 2)
    assert found() == [str(path)]


def test_an_interrupted_deletion_leaves_no_half_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(Path("runs/one"))
    items, _ = find_leftovers(Path("runs"), keep=1)

    def fail(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", fail)
        with pytest.raises(KeyboardInterrupt):
            delete_leftovers(items)
    assert checkpoints.iterations(run) in ([1, 2, 3], [2, 3])
    for step in checkpoints.iterations(run):
        checkpoints.verified(checkpoints.folder_of(run, step))
    delete_leftovers(find_leftovers(Path("runs"), keep=1)[0])
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [checkpoints.LATEST, "step_3"]


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    trained(tmp_path / "elsewhere/one")
    Path("runs").mkdir()
    Path("runs/link").symlink_to(tmp_path / "elsewhere/one")
    assert found() == []


def running(path: Path) -> Path:
    """A run with checkpoints whose process, this one, has not locked it."""
    trained(path)
    facts = json.loads((path / "run.json").read_text())
    write_json(path / "run.json", {**facts, "status": "running", **process_facts()})
    return path


@pytest.mark.parametrize("linked", ["checkpoints", "policies"])
@pytest.mark.parametrize("live", ["runs/live", "elsewhere/live", "runs/one/inner"])
def test_nothing_is_deleted_through_a_link_into_another_run(linked: str, live: str) -> None:
    run = trained(Path("runs/one"), status="interrupted")
    running(Path(live))
    (Path(live) / "policies/v00001").mkdir(parents=True)
    shutil.rmtree(run / linked, ignore_errors=True)
    (run / linked).symlink_to((Path(live) / linked).resolve())
    before = sorted(Path(live).rglob("*"))
    items, notes = find_leftovers(Path("runs"), keep=1)
    assert any("runs/one" in note and "not" in note for note in notes)
    delete_leftovers(items)
    assert sorted(Path(live).rglob("*")) == before


def test_a_link_that_appears_between_the_question_and_the_answer_is_not_followed() -> None:
    run, live = trained(Path("runs/one")), running(Path("live"))
    items, _ = find_leftovers(Path("runs"), keep=1)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to((live / "checkpoints").resolve())
    deleted, notes = delete_leftovers(items)
    assert deleted == [] and all("not inside" in note for note in notes) and notes
    assert checkpoints.iterations(live) == [1, 2, 3]


def test_a_checkpoint_that_is_a_link_goes_as_a_link() -> None:
    run, other = trained(Path("runs/one")), trained(Path("kept/other"))
    shutil.rmtree(run / "checkpoints/step_1")
    (run / "checkpoints/step_1").symlink_to((other / "checkpoints/step_1").resolve())
    delete_leftovers(find_leftovers(Path("runs"), keep=1)[0])
    assert [path.name for path in (run / "checkpoints").iterdir() if "step" in path.name] == ["step_3"]
    assert checkpoints.iterations(other) == [1, 2, 3]


def test_a_training_keeps_checkpoints_that_are_on_another_disk() -> None:
    run = trained(Path("runs/one"))
    (run / "checkpoints").rename("disk")
    (run / "checkpoints").symlink_to(Path("disk").resolve())
    checkpoints.prune(run, 1)
    assert checkpoints.iterations(run) == [1, 2, 3]
