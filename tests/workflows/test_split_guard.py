"""What may not be trained on is refused before anything starts; a named flag lets it pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.data_files import DATASET

from finqa_cli.app import main
from finqa_cli.data import DataSet, LocalSnapshots
from finqa_cli.record.files import write_json
from finqa_cli.record.run_folder import RunFolder
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import Message, Observation, Rewards, Status, Task, ToolCall, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("empty_folder")

TRAIN = ("train", "--model=embedded", "--engine=transformers", "--sandbox=local", "--split=dev", "--quiet")
NEXT_STAGE = "is not empty"
"""What a run says that gets past the guard, when its folder is taken."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    return tmp_path / "home"


def crossing() -> DataSet:
    """The data with one company of `train` asked about in `test` as well."""
    first, *others = [question for question in DATASET.questions if question.split == "train"]
    rest = [question for question in DATASET.questions if question.split != "train"]
    return replace(DATASET, questions=(replace(first, split="test"), *others, *rest))


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    errors = capsys.readouterr().err
    assert "Traceback" not in errors and "Unexpected" not in errors, errors
    return code, errors


def test_evaluation_data_is_not_trained_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalSnapshots(home).build("snorkel", replace(DATASET, evaluation_only=True))
    code, errors = fails(capsys, *TRAIN, "--snapshot=snorkel", "--run-dir=run")
    assert code == 65 and "'snorkel' is for evaluation only" in errors and "--allow-evaluation-data" in errors
    assert not Path("run").exists(), "a refused run leaves no folder"
    code, errors = fails(capsys, *TRAIN, "--snapshot=snorkel", "--set=data.train_split=none", "--run-dir=run")
    assert code == 65 and "is for evaluation only" in errors, "the refusal comes before any other complaint"
    code, errors = fails(capsys, *TRAIN, "--snapshot=snorkel", "--allow-evaluation-data", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors
    code, errors = fails(
        capsys, *TRAIN, "--snapshot=snorkel", "--set=data.allow_evaluation_only=true", "--run-dir=taken"
    )
    assert code == 78 and NEXT_STAGE in errors


def test_companies_that_are_evaluated_on_are_not_trained_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalSnapshots(home).build("mixed", crossing())
    company = next(question.company for question in DATASET.questions if question.split == "train")
    code, errors = fails(capsys, *TRAIN, "--snapshot=mixed", "--run-dir=run")
    assert code == 65 and f"1 company ({company})" in errors and "split train" in errors and "--allow-overlap" in errors
    code, errors = fails(capsys, *TRAIN, "--snapshot=mixed", "--allow-overlap", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors


def test_the_split_that_is_trained_on_is_not_the_one_evaluated_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalSnapshots(home).build("clean", DATASET)
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--set=data.train_split=dev", "--run-dir=run")
    assert code == 65 and "also evaluated on" in errors
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors


def demonstrations(run: Path, snapshot: str, split: str) -> Path:
    """A recorded evaluation of one question of a split, as `finqa eval` leaves it."""
    question = next(question for question in DATASET.questions if question.split == split)
    task = Task(id=question.id, prompt=question.user_query, split=split, cluster=question.company)
    settings = Settings()
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"snapshot": snapshot})})
    turn = Turn(
        text="",
        tool_call=ToolCall(name="submit_answer", arguments={"answer": "1"}),
        observation=Observation(text="ok", done=True),
    )
    trajectory = Trajectory(
        id=f"eval/{task.id}/0",
        task=task,
        member=0,
        seed=0,
        status=Status.COMPLETED,
        turns=(turn,),
        messages=(Message(role="user", content=question.user_query),),
        rewards=Rewards(total=1.0),
    )
    with RunFolder.create(run, command="eval", settings=to_public_dict(settings), save_token_ids=False) as folder:
        folder.trajectory(trajectory, phase="eval", iteration=0)
        folder.finish("completed")
    return run


def sft(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Supervised fine-tuning into a folder that is taken: whatever gets past the guard ends with 78."""
    return fails(capsys, "sft", *arguments, "--model=embedded", "--run-dir=taken", "--quiet")


def test_demonstrations_of_the_test_split_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalSnapshots(home).build("clean", DATASET)
    run = demonstrations(Path("demonstrations"), "clean", "test")
    for source in (run, run / "trajectories.jsonl"):
        code, errors = sft(capsys, str(source))
        assert code == 65 and "1 of 1 demonstrations" in errors and "split test" in errors, errors
    code, errors = sft(capsys, str(run), "--allow-evaluation-data")
    assert code == 78 and NEXT_STAGE in errors
    code, errors = sft(capsys, str(demonstrations(Path("good"), "clean", "train")))
    assert code == 78 and NEXT_STAGE in errors


def test_demonstrations_of_evaluation_data_are_refused_while_it_is_known(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, _ = LocalSnapshots(home).build("snorkel", replace(DATASET, evaluation_only=True))
    run = demonstrations(Path("demonstrations"), "snorkel", "train")
    code, errors = sft(capsys, str(run))
    assert code == 65 and "'snorkel', which is for evaluation only" in errors
    LocalSnapshots(home).delete("snorkel")
    code, errors = sft(capsys, str(run))
    assert code == 78, "nothing is left that says so"
    data = {"name": "snorkel", "digest": snapshot.digest, "evaluation_only": True}
    write_json(run / "report.json", {"data": data})
    code, errors = sft(capsys, str(run))
    assert code == 65 and "'snorkel', which is for evaluation only" in errors


def test_demonstrations_of_companies_that_are_evaluated_on_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalSnapshots(home).build("mixed", crossing())
    run = demonstrations(Path("demonstrations"), "mixed", "train")
    code, errors = sft(capsys, str(run))
    assert code == 65 and "also evaluated on" in errors and "--allow-overlap" in errors
    assert sft(capsys, str(run), "--allow-overlap")[0] == 78
    assert json.loads((run / "settings.json").read_text())["data"]["snapshot"] == "mixed"
