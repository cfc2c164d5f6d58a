from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.tatqa_pages import page, write

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import DataError
from finqa_plugins.environments.tatqa.config import TatQAConfig
from finqa_plugins.environments.tatqa.tatqa_environment import TatQAEnvironment

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "tatqa" / "tatqa_dataset_dev.json"


def environment(path: Path | None, **options: Any) -> TatQAEnvironment:
    return TatQAEnvironment(TatQAConfig(**options), EnvironmentContext(snapshot=None, data=path))


async def verdict(chosen: TatQAEnvironment, id_: str, reply: object) -> tuple[float, dict[str, float], str]:
    task = next(task for split in chosen.splits() for task in chosen.tasks(split) if task.id == id_)
    session = await chosen.open(task, seed=0, sandbox=None)
    await session.reply(reply if isinstance(reply, str) else json.dumps(reply))
    rewards = await session.grade()
    return rewards.total, dict(rewards.components), rewards.explanation


def test_the_prompt_has_table_paragraphs_in_order_and_question(tmp_path: Path) -> None:
    chosen = environment(write(tmp_path / "dev.json", page(1)))
    task = chosen.tasks("dev")[0]
    assert (task.id, task.cluster, task.kind) == ("q1a", "t1", "span")
    assert chosen.opening(task).messages[-1].content == (
        "Table:\n|  | 2019 | 2018 |\n| Sales | $ 1,200 | 900 |\n\nIn millions.\n\nSales rose.\n\n"
        "Question: What were sales in 2019?"
    )


@pytest.mark.parametrize(
    ("id_", "reply", "em", "f1", "scale", "said"),
    [
        ("q1a", {"answer": "1,200", "scale": "million"}, 1.0, 1.0, 1.0, "Right."),
        ("q1a", {"answer": ["$1,200"], "scale": "million"}, 1.0, 1.0, 1.0, "Right."),
        ("q1a", {"answer": "1,200"}, 0.0, 0.0, 0.0, "Wrong: the scale."),
        ("q1b", {"answer": ["1200", "900"], "scale": "million"}, 1.0, 1.0, 1.0, "Right."),
        ("q1b", {"answer": ["900"], "scale": "million"}, 0.0, 0.67, 1.0, "Wrong: the answer."),
        ("q1c", {"answer": 11.11, "scale": "percent"}, 1.0, 1.0, 1.0, "Right."),
        ("q1c", {"answer": 0.1111, "scale": ""}, 1.0, 1.0, 0.0, "Right."),
        ("q1c", {"answer": "11.11%", "scale": ""}, 1.0, 1.0, 0.0, "Right."),
        ("q1d", {"answer": 2, "scale": ""}, 1.0, 1.0, 1.0, "Right."),
        ("q1e", {"answer": 0, "scale": "million"}, 1.0, 1.0, 1.0, "Right."),
        ("q1e", '```json\n{"answer": "0.0", "scale": "million"}\n```', 1.0, 1.0, 1.0, "Right."),
        ("q1e", {"answer": [], "scale": "million"}, 0.0, 0.0, 0.0, "Wrong: the scale."),
    ],
)
async def test_replies_are_scored_as_the_published_script_does(
    tmp_path: Path, id_: str, reply: object, em: float, f1: float, scale: float, said: str
) -> None:
    chosen = environment(write(tmp_path / "dev.json", page(1)))
    total, components, explanation = await verdict(chosen, id_, reply)
    assert (total, components) == (em, {"em": em, "f1": f1, "scale": scale, "format": 1.0})
    assert explanation == said


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("1,200 million", "not JSON"),
        ({"scale": "million"}, "the key 'answer' is missing"),
        ({"answer": 1, "unit": "million"}, "unknown key 'unit'"),
        ({"answer": {"a": 1}}, "'answer' is not a text, a number or a list of these"),
        ({"answer": [True]}, "'answer' is not a text, a number or a list of these"),
        ({"answer": 1, "scale": "dozen"}, "'scale' is not one of thousand"),
        ({"answer": 1, "scale": ["million"]}, "'scale' is not one of thousand"),
    ],
)
async def test_another_form_is_no_answer(tmp_path: Path, reply: object, reason: str) -> None:
    chosen = environment(write(tmp_path / "dev.json", page(1)))
    total, components, explanation = await verdict(chosen, "q1a", reply)
    assert (total, components["format"]) == (0.0, 0.0) and reason in explanation


def damaged(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(page(2))
    change(value)
    return value


DAMAGE: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda p: p.pop("table"), "field 'table.uid': must be a text"),
    (lambda p: p["table"].update(table=[]), "field 'table.table': must be a list of rows"),
    (lambda p: p["table"].update(table=[[1]]), "field 'table.table': must be a text"),
    (lambda p: p.update(paragraphs="x"), "field 'paragraphs': must be a list of objects"),
    (lambda p: p["paragraphs"][0].pop("order"), "field 'paragraphs.order': must be a whole number"),
    (lambda p: p.update(questions=[]), "field 'questions': must not be empty"),
    (lambda p: p["questions"][0].pop("answer"), "field 'questions.answer': must be a list of texts for a span"),
    (lambda p: p["questions"][2].update(answer="ten"), "field 'questions.answer': 'ten' is no number"),
    (lambda p: p["questions"][3].update(answer="2.5"), "field 'questions.answer': '2.5' is no number"),
    (lambda p: p["questions"][3].update(answer=True), "field 'questions.answer': must be a number"),
    (lambda p: p["questions"][0].update(answer_type="yes-no"), "field 'questions.answer_type': 'yes-no' is not one of"),
    (lambda p: p["questions"][0].update(scale="dozen"), "field 'questions.scale': 'dozen' is not one of"),
    (lambda p: p["questions"][0].update(scale=["million"]), "field 'questions.scale': ['million'] is not one of"),
    (lambda p: p["questions"][0].update(uid="q1a"), "field 'questions.uid': q1a occurs twice"),
    (lambda p: p["table"].update(uid="t1"), "field 'table.uid': t1 occurs twice"),
]


@pytest.mark.parametrize(("change", "reason"), DAMAGE)
def test_a_bad_page_is_named_and_can_be_left_out(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = write(tmp_path / "dev.json", page(1), damaged(change))
    with pytest.raises(DataError) as caught:
        environment(path)
    assert f"{path}, row 2, {reason}" in caught.value.message
    assert len(environment(path, skip_bad=True).tasks("dev")) == 5


def test_data_is_needed() -> None:
    with pytest.raises(DataError, match="includes no questions"):
        environment(None)


def test_a_single_training_file_is_divided_by_page(tmp_path: Path) -> None:
    chosen = environment(write(tmp_path / "tatqa_dataset_train.json", *map(page, range(1, 11))), holdout=0.3)
    pages = {split: {task.cluster for task in chosen.tasks(split)} for split in chosen.splits()}
    assert {split: len(found) for split, found in pages.items()} == {"train": 7, "dev": 3}
    assert not pages["train"] & pages["dev"]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="TAT-QA is not here")
async def test_the_published_questions_are_read_and_their_gold_answers_right() -> None:
    chosen = environment(PUBLISHED)
    tasks = chosen.tasks("dev")
    assert len(tasks) == 1668 and len({task.cluster for task in tasks}) == 278
    rows = [chosen._rows[task.id] for task in tasks]
    totals = [chosen.judge(row, task, chosen.solution(row, 1)).total for row, task in zip(rows, tasks, strict=True)]
    assert sum(totals) == 1668
