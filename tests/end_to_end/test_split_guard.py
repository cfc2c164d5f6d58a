"""What may not be trained on is refused before anything starts; a named flag lets it pass."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.data_files import DATASET
from fixtures.finqa_text_rows import original, write

from finqa_cli.app import main
from finqa_cli.data import DataSet, LocalSnapshots
from finqa_cli.runs.durable_files import write_json
from finqa_cli.runs.run_folder import RunFolder
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
    assert code == 65 and "'snorkel' cannot be used for training" in errors and "--allow-evaluation-data" in errors
    assert not Path("run").exists(), "a refused run leaves no folder"
    code, errors = fails(capsys, *TRAIN, "--snapshot=snorkel", "--set=data.train_split=none", "--run-dir=run")
    assert code == 65 and "marked for evaluation only" in errors, "the refusal comes before any other complaint"
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
    assert code == 65 and "overlaps with the evaluation data" in errors
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors


def renamed(dataset: DataSet, **companies: str) -> DataSet:
    """The data with its companies under other names."""
    names = {company: f"company_{number}" for number, company in enumerate(dataset.companies())} | companies
    tables = tuple(replace(table, company=names[table.company]) for table in dataset.tables)
    questions = tuple(replace(one, id=f"x{one.id}", company=names[one.company]) for one in dataset.questions)
    return replace(dataset, tables=tables, questions=questions)


def test_what_another_snapshot_keeps_for_evaluation_is_not_trained_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalSnapshots(home).build("clean", DATASET)
    LocalSnapshots(home).build("other", renamed(DATASET))
    assert fails(capsys, *TRAIN, "--snapshot=clean", "--run-dir=taken")[0] == 78, "other can be used for training"
    LocalSnapshots(home).build("snorkel", replace(renamed(DATASET), evaluation_only=True))
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--run-dir=run")
    assert code == 65 and "the snapshot 'snorkel', which is for evaluation only: " in errors, errors
    assert "questions (" in errors and "compan" not in errors and "--allow-overlap" in errors
    assert not Path("run").exists()
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--allow-overlap", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors
    code, errors = fails(capsys, *TRAIN, "--snapshot=other", "--run-dir=run")
    assert code == 65 and "'snorkel'" in errors, "the same content without the mark is no way around it"


def test_companies_of_another_snapshot_for_evaluation_are_not_trained_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    company = next(question.company for question in DATASET.questions if question.split == "train")
    questions = tuple(replace(question, user_query="How much?") for question in DATASET.questions)
    LocalSnapshots(home).build("clean", DATASET)
    other = renamed(replace(DATASET, questions=questions, evaluation_only=True), **{company: company.upper()})
    LocalSnapshots(home).build("snorkel", other)
    code, errors = fails(capsys, *TRAIN, "--snapshot=clean", "--run-dir=run")
    assert code == 65 and f"'snorkel', which is for evaluation only: 1 company ({company})" in errors, errors
    assert "question (" not in errors and "questions (" not in errors


def test_data_that_may_be_trained_on_by_permission_is_not_compared_with_itself(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalSnapshots(home).build("snorkel", replace(DATASET, evaluation_only=True))
    code, errors = fails(capsys, *TRAIN, "--snapshot=snorkel", "--allow-evaluation-data", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors


def test_a_damaged_snapshot_is_named_and_skipped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalSnapshots(home).build("clean", DATASET)
    broken, _ = LocalSnapshots(home).build("broken", replace(renamed(DATASET), evaluation_only=True))
    (broken.path / "tasks.jsonl").write_text("{}\n")
    loud = [argument for argument in TRAIN if argument != "--quiet"]
    code, errors = fails(capsys, *loud, "--snapshot=clean", "--run-dir=taken")
    assert code == 78 and "Not compared with what is trained on" in errors and "'broken'" in errors


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
    """Supervised fine-tuning into a folder that is taken: what passes the guard ends with 78."""
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
    assert code == 65 and "overlaps with the evaluation data" in errors and "--allow-overlap" in errors
    assert sft(capsys, str(run), "--allow-overlap")[0] == 78
    assert json.loads((run / "settings.json").read_text())["data"]["snapshot"] == "mixed"


def test_demonstrations_of_questions_of_another_snapshot_for_evaluation_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalSnapshots(home).build("clean", DATASET)
    LocalSnapshots(home).build("snorkel", replace(renamed(DATASET), evaluation_only=True))
    run = demonstrations(Path("demonstrations"), "clean", "train")
    for source in (run, run / "trajectories.jsonl"):
        code, errors = sft(capsys, str(source))
        assert code == 65 and "the snapshot 'snorkel', which is for evaluation only" in errors, errors
    assert sft(capsys, str(run), "--allow-overlap")[0] == 78


def test_rows_without_a_company_are_compared_by_their_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    for split in ("train", "dev"):
        row = original(1, id=split, filename=None, qa={"question": f"a question of {split}?"})
        write(Path("data") / f"{split}.json", row)
    text = ("--environment=finqa-text", "--data=data")
    code, errors = fails(capsys, *TRAIN, *text, "--run-dir=run")
    assert code == 65 and "1 company (page " in errors, errors
    code, errors = fails(capsys, *TRAIN, *text, "--allow-overlap", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors, errors


def test_the_advice_for_files_is_a_command_that_divides_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    for split in ("train", "dev"):
        rows = [
            original(number, id=f"C{number}/{split}.pdf-1", filename=f"C{number}/{split}.pdf") for number in range(40)
        ]
        write(Path("data") / f"{split}.json", *rows)
    text = ("--environment=finqa-text", "--data=data")
    code, errors = fails(capsys, *TRAIN, *text, "--run-dir=run")
    assert code == 65 and "40 companies" in errors, errors
    advice = errors.partition("fix: ")[2]
    command = advice[advice.index("(") + 1 : advice.index(")")]
    assert command.startswith("finqa data prepare ") and main(shlex.split(command)[1:]) == 0
    assert "and --data divided" in advice
    code, errors = fails(capsys, *TRAIN, text[0], "--data=divided", "--run-dir=taken")
    assert code == 78 and NEXT_STAGE in errors, errors


OWN = """
def tasks():
    for number in range(40):
        yield {"prompt": f"What is {number}?", "cluster": str(number // 2), "split": ("train", "dev")[number % 2]}


def reward(answer):
    return answer == "2"
"""


def test_the_advice_for_an_own_environment_is_about_its_tasks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    code, errors = fails(capsys, "train", "--environment=own.py", "--model=embedded", "--split=dev", "--run-dir=run")
    advised = "put all tasks of one cluster into one split, or leave out the splits: tasks"
    assert code == 65 and advised in errors, errors
    assert "data prepare" not in errors
    Path("own.py").write_text(OWN.replace(', "split": ("train", "dev")[number % 2]', ""))
    code, errors = fails(capsys, "train", "--environment=own.py", "--model=embedded", "--split=dev", "--run-dir=run")
    assert code == 78 and "for another environment" in errors, errors
