from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.finqa_text_rows import original, write

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import DataError, EnvironmentFault
from finqa_cli.grading.programs import execute, parse
from finqa_cli.types import Message, Task
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_environment import FinQATextEnvironment
from finqa_plugins.environments.finqa_text.text_generate import generate

EMBEDDED = generate(FinQATextConfig())
ROWS = [row for rows in EMBEDDED.rows.values() for row in rows]


def environment(path: Path | None, **options: object) -> FinQATextEnvironment:
    config = FinQATextConfig.model_validate(options)
    return FinQATextEnvironment(config, EnvironmentContext(snapshot=None, data=path))


def test_embedded_tasks_follow_from_their_options_alone() -> None:
    again, other = generate(FinQATextConfig()), generate(FinQATextConfig(seed=1))
    assert again == EMBEDDED and again.info.name == "embedded" and not again.info.evaluation_only
    assert other.info.digest != EMBEDDED.info.digest
    more = {row.id: row for rows in generate(FinQATextConfig(questions=14)).rows.values() for row in rows}
    assert len(ROWS) == 30 * 12 and all(more[row.id] == row for row in ROWS)


def test_embedded_splits_share_no_company() -> None:
    companies = {split: {row.company for row in rows} for split, rows in EMBEDDED.rows.items()}
    assert {split: len(names) for split, names in companies.items()} == {"train": 22, "dev": 4, "test": 4}
    assert len(set.union(*companies.values())) == 30
    smallest = generate(FinQATextConfig(companies=3, questions=1))
    assert {split: len(rows) for split, rows in smallest.rows.items()} == {"train": 1, "dev": 1, "test": 1}


def test_embedded_truths_are_results_of_their_programs_on_the_shown_page() -> None:
    for row in ROWS:
        program = parse(row.program)
        assert execute(program, row.table) == row.truth
        for step in program.steps:
            for argument in (step.first, step.second):
                if isinstance(argument, str) and argument != "none" and not argument.startswith("const_"):
                    assert argument in row.text
        assert row.program not in row.text


def test_embedded_questions_differ_and_have_the_kinds_of_finqa() -> None:
    assert len({row.text for row in ROWS}) == len(ROWS) == len({row.id for row in ROWS})
    kinds = {row.kind for row in ROWS}
    assert {"divide", "subtract", "subtract+divide", "add", "greater", "table_average", "three or more steps"} <= kinds
    answers = [row.truth for row in ROWS if row.kind == "greater"]
    assert {"yes", "no"} == set(answers)
    assert len({row.text for rows in generate(FinQATextConfig(questions=24)).rows.values() for row in rows}) == 720


@pytest.mark.parametrize("name", ["dev.json", "test.json"])
def test_a_file_to_evaluate_on_has_its_own_split_alone(tmp_path: Path, name: str) -> None:
    loaded = environment(write(tmp_path / name, original()))
    (own,) = loaded.splits()
    (task,) = loaded.tasks(own)
    assert task.split == own == name[:-5]
    with pytest.raises(DataError, match="has no split"):
        loaded.tasks("test" if own == "dev" else "dev")
    with pytest.raises(DataError, match="evaluation only" if name == "test.json" else "has no split 'train'"):
        loaded.tasks("train")


def test_with_all_splits_each_answers_to_its_own_name(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "dev", "test")):
        write(tmp_path / f"{name}.json", original(number))
    loaded = environment(tmp_path)
    assert [task.split for name in loaded.splits() for task in loaded.tasks(name)] == ["train", "dev", "test"]


def test_a_task_shows_its_question_and_no_truth(tmp_path: Path) -> None:
    loaded = environment(write(tmp_path / "dev.json", original()))
    assert loaded.tasks("dev") == (
        Task(
            id="AAL/2018/page_1.pdf-1",
            prompt="what was the growth of net sales ?",
            split="dev",
            cluster="AAL",
            kind="subtract+divide",
        ),
    )


async def test_a_task_of_other_data_is_a_fault(tmp_path: Path) -> None:
    loaded = environment(write(tmp_path / "dev.json", original()))
    stranger = Task(id="stranger", prompt="?", split="dev", cluster="c")
    with pytest.raises(EnvironmentFault, match="no question 'stranger'"):
        await loaded.open(stranger, seed=0, sandbox=None)


async def test_questions_asked_twice_are_demonstrated_and_judged(tmp_path: Path) -> None:
    twin = {**original(), "id": "twin"}
    loaded = environment(write(tmp_path / "dev.json", original(), twin, original(2, qa={"question": "{odd} #0 </s>"})))
    for task in loaded.tasks("dev"):
        session = await loaded.open(task, seed=0, sandbox=None)
        turn = loaded.demonstrate(session.prompt().messages)
        assert turn is not None and turn.text == ('{"answer": 0.2, "program": "subtract(600, 500), divide(#0, 500)"}')
        await session.reply(turn.text)
        assert (await session.grade()).total == 1
    assert loaded.demonstrate([Message(role="assistant", content=turn.text)]) is None
