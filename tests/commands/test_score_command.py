"""`finqa score`: figures of the published scripts from their own files of predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import convfinqa_dialogues, finqa_text_rows, tatqa_pages
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.openenv_layout.layout import write_layout

pytestmark = pytest.mark.usefixtures("empty_folder")
TOKENS = ["subtract(", "600", "500", ")", "divide(", "#0", "500", ")", "EOF"]


def save(name: str, value: object) -> Path:
    path = Path(name)
    lines = "\n".join(map(json.dumps, value)) if name.endswith(".jsonl") else json.dumps(value)  # type: ignore[call-overload]
    path.write_text(lines + "\n", encoding="utf-8")
    return path


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, float], dict[str, Any]]:
    found = document(["score", *arguments], capsys)
    return {name: round(each["value"], 4) for name, each in found["figures"].items()}, found


@pytest.mark.parametrize(
    ("tokens", "execution"),
    [
        (TOKENS, 1.0),
        ([*TOKENS, "EOF"], 0.0),  # an end before the last token is no operation
        ([*TOKENS[:-1], "none"], 1.0),  # the last token is not read
        (TOKENS[:-1], 0.0),  # so that the second step does not end
        (["divide(", "100", "500", ")", "add(", "#0", "7", "EOF"], 1.0),  # such a step is not read
        (["divide(", "100", "500", ")", "nothing(", "#0", "7", "EOF"], 0.0),
        (["EOF"], 0.0),
        ([], 0.0),
    ],
)
def test_tokens_are_read_as_by_the_script_of_finqa(
    tokens: list[str], execution: float, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = finqa_text_rows.write(Path("test.json"), finqa_text_rows.original(1))
    save("predictions.json", [{"id": finqa_text_rows.original(1)["id"], "predicted": tokens}])
    found, _ = figures(capsys, "predictions.json", "--metric", "finqa", "--truth", str(truth))
    assert found["execution"] == execution


def test_finqa_counts_the_predictions_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [finqa_text_rows.original(number) for number in range(1, 6)]
    truth = finqa_text_rows.write(Path("test.json"), *rows)
    wrong = ["divide(", "100", "500", ")", "EOF"]
    cut = ["subtract(", "600"]
    predicted = [
        {"id": row["id"], "predicted": tokens} for row, tokens in zip(rows, (TOKENS, wrong, cut), strict=False)
    ]
    save("predictions.json", [*predicted, {"id": "unknown", "predicted": TOKENS}])
    found, about = figures(capsys, "predictions.json", "--metric", "finqa", "--truth", str(truth), "--rows", "rows.csv")
    assert found == {"execution": 0.6667, "program": 0.3333}
    assert (about["rows"], about["missing"], about["unknown"]) == (3, 2, 1)
    with Path("rows.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(row["execution"], row["program"]) for row in written] == [("1.0", "1.0"), ("1.0", "0.0"), ("0.0", "0.0")]
    assert "Not equivalent" in written[1]["reason"] and "Not a program" in written[2]["reason"]


def test_convfinqa_scores_single_turns(capsys: pytest.CaptureFixture[str]) -> None:
    dialogue = convfinqa_dialogues.original(1)
    truth = convfinqa_dialogues.write(Path("dev.json"), dialogue)
    said = [["1200", "EOF"], ["1,200", "EOF"], ["subtract(", "1200", "900", ")", "EOF"], "greater(900, 1200)"]
    save("predictions.jsonl", [{"id": f"{dialogue['id']}_{turn}", "predicted": each} for turn, each in enumerate(said)])
    found, about = figures(capsys, "predictions.jsonl", "--metric", "convfinqa", "--truth", str(truth))
    assert found == {"execution": 0.5, "program": 0.5} and (about["rows"], about["missing"]) == (4, 0)


def test_tatqa_counts_all_questions(capsys: pytest.CaptureFixture[str]) -> None:
    truth = tatqa_pages.write(Path("dev.json"), tatqa_pages.page(1))
    save(
        "predictions.json",
        {
            "q1a": [["$1,200"], "million"],
            "q1b": [["900"], "million"],
            "q1c": ["11.11", ""],
            "q1e": [0, "million"],  # the published script takes the number 0 for no answer
            "unknown": ["1", ""],
        },
    )
    found, about = figures(capsys, "predictions.json", "--metric", "tatqa", "--truth", str(truth))
    assert found == {"em": 0.2, "f1": 0.334, "scale": 0.4}
    assert (about["rows"], about["missing"], about["unknown"]) == (5, 1, 1)
    assert main(["score", "predictions.json", "--metric", "tatqa", "--truth", str(truth)]) == 0
    said = capsys.readouterr().out
    assert "tatqa: 5 rows" in said and "1 question without a prediction." in said
    assert "q1b: Wrong: the answer." in said and "... and 1 more; --rows FILE writes them all" in said


def test_openenv_grades_answers_by_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = generate(GenerateSpec(companies=2, questions=4))
    write_layout(dataset, Path("data"))
    first, second, *_ = dataset.questions
    save("predictions.jsonl", [{"id": first.id, "answer": first.answer}, {"id": second.id, "answer": "unknown"}])
    found, about = figures(capsys, "predictions.jsonl", "--metric", "openenv", "--truth", "data")
    assert found == {"accuracy": round(1 / len(dataset.questions), 4)}
    assert about["missing"] == len(dataset.questions) - 2
    save("answers.json", {each.id: each.answer for each in dataset.questions})
    assert figures(capsys, "answers.json", "--metric", "openenv", "--truth", "data")[0] == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("flags", "settings", "accuracy"),
    [
        ((), "", 0.0),
        ((), 'environment = "finqa-text"\n', 0.0),  # whose own answers are graded by another profile
        (("--grader", "strict"), "", 1.0),
        ((), '[environment.options]\ngrader = "strict"\n', 1.0),
    ],
)
def test_openenv_grades_by_other_rules_only_when_asked(
    flags: tuple[str, ...], settings: str, accuracy: float, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = generate(GenerateSpec(companies=2, questions=4))
    write_layout(dataset, Path("data"))
    lookup = next(each for each in dataset.questions if each.answer.isdigit())
    save("predictions.jsonl", [{"id": lookup.id, "answer": f"The answer is {lookup.answer}."}])
    Path("finqa.toml").write_text(settings)
    found, _ = figures(capsys, "predictions.jsonl", "--metric", "openenv", "--truth", "data", *flags)
    assert found["accuracy"] == round(accuracy / len(dataset.questions), 4)


@pytest.mark.parametrize(
    ("metric", "predictions", "status", "reason"),
    [
        ("bleu", [], 78, "There is no metric 'bleu'."),
        ("finqa", {}, 65, "The predictions are not a list of objects."),
        ("finqa", [{"predicted": []}], 65, "Prediction 1 has no id."),
        ("finqa", [{"id": "AAL/2018/page_1.pdf-1", "predicted": 3}], 65, "`predicted` is not a list of tokens"),
        ("finqa", [{"id": "AAL/2018/page_1.pdf-1", "predicted": "1"}] * 2, 65, "occurs twice"),
        ("finqa", [{"id": "x", "predicted": []}], 65, "No prediction of predictions.json belongs to a question of"),
        ("tatqa", [], 65, "The predictions are not an object."),
        ("tatqa", {"q1a": "1,200"}, 65, "The prediction of q1a is not [answer, scale]."),
        ("tatqa", {"q1a": [{"a": 1}, ""]}, 65, "The prediction of q1a is not [answer, scale]."),
        ("tatqa", {"q1a": [["1", None], ""]}, 65, "The prediction of q1a is not [answer, scale]."),
        ("openenv", [1], 65, "The predictions are neither an object nor rows."),
        ("openenv", None, 65, "predictions.json: the file is missing"),
    ],
)
def test_what_cannot_be_scored_is_named(
    capsys: pytest.CaptureFixture[str], metric: str, predictions: object, status: int, reason: str
) -> None:
    if predictions is not None:
        save("predictions.json", predictions)
    if metric == "tatqa":
        truth = tatqa_pages.write(Path("dev.json"), tatqa_pages.page(1))
    else:
        truth = finqa_text_rows.write(Path("dev.json"), finqa_text_rows.original(1))
    command = ["score", "predictions.json", "--metric", metric, "--truth", str(truth)]
    found, said = failure(command, capsys)
    assert found == status and reason in said
