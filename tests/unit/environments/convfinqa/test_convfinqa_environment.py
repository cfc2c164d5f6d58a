from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.convfinqa_dialogues import QUESTIONS, cleaned, original, write

from finqa_cli.contracts import EnvironmentContext, TextSession
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.types import Status, Task, Trajectory
from finqa_plugins.environments.convfinqa.config import ConvFinQAConfig
from finqa_plugins.environments.convfinqa.convfinqa_environment import ConvFinQAEnvironment

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "convfinqa" / "dev.json"
WRONG = {"correct": 0.75, "execution": 0.75, "program": 0.75, "dialogue": 0.0}
GOLD = [
    {"answer": 1200, "program": "1200"},
    {"answer": 900, "program": "900"},
    {"answer": 300, "program": "subtract(1200, 900)"},
    {"answer": "yes", "program": "greater(1200, 900)"},
]
ALL = {"correct": 1.0, "execution": 1.0, "program": 1.0, "answer": 1.0, "format": 1.0, "dialogue": 1.0}


def environment(path: Path | None, **options: Any) -> ConvFinQAEnvironment:
    return ConvFinQAEnvironment(ConvFinQAConfig(**options), EnvironmentContext(snapshot=None, data=path))


async def play(chosen: ConvFinQAEnvironment, task: Task, replies: list[object]) -> tuple[TextSession, list[str]]:
    session = await chosen.open(task, seed=0, sandbox=None)
    said = []
    for place, reply in enumerate(replies, start=1):
        observation = await session.reply(reply if isinstance(reply, str) else json.dumps(reply))
        said.append(observation.text)
        assert observation.done == (place == 4)
    return session, said


@pytest.mark.parametrize("form", [original, cleaned])
async def test_a_whole_dialogue_is_one_episode(tmp_path: Path, form: Callable[[int], dict[str, Any]]) -> None:
    chosen = environment(write(tmp_path / "dev.json", form(1)))
    (task,) = chosen.tasks("dev")
    assert (task.cluster, task.kind) == ("C1", "simple" if form is original else "hybrid")
    opening = chosen.opening(task).messages[-1].content
    cells = "| sales | 1200 | 900 |" if form is original else "| sales | 1200.0 | 900.0 |"
    assert opening.startswith("Context:\nsales rose . in thousands .\n\nTable:\n|  | 2019 | 2018 |\n" + cells)
    assert opening.endswith(f"\n\nQuestion: {QUESTIONS[0]}")
    session, said = await play(chosen, task, list(GOLD))
    assert said == [*(f"Question: {question}" for question in QUESTIONS[1:]), "All questions are answered."]
    rewards = await session.grade()
    assert (rewards.total, dict(rewards.components), rewards.explanation) == (1.0, ALL, "All 4 turns are right.")
    assert (await session.reply("{}")).is_error


async def test_right_answers_are_told_where_they_are_the_history(tmp_path: Path) -> None:
    chosen = environment(write(tmp_path / "dev.json", original(1)), history="gold")
    _, said = await play(chosen, chosen.tasks("dev")[0], [{"answer": 1}, {"answer": 1}, {"answer": 1}])
    assert said == [
        f"The right answer was {answer}.\n\nQuestion: {question}"
        for answer, question in zip((1200, 900, 300), QUESTIONS[1:], strict=True)
    ]


@pytest.mark.parametrize(
    ("place", "reply", "parts"),
    [
        (0, {"answer": 1200, "program": "1,200"}, {"program": 0.75}),
        (0, {"answer": 1200}, {"execution": 0.75, "program": 0.75}),
        (0, {"answer": 1200, "program": "add(900, 300)"}, {"program": 0.75}),
        (2, {"answer": 300, "program": "300"}, {"program": 0.75}),
        (2, {"answer": 300, "program": "30"}, WRONG),
        (
            3,
            {"answer": "yes", "program": "yes"},
            {"correct": 0.75, "execution": 0.75, "program": 0.75, "dialogue": 0.0},
        ),
        (3, "yes", dict.fromkeys(ALL, 0.75) | {"dialogue": 0.0}),
    ],
)
async def test_parts_are_means_over_the_turns(
    tmp_path: Path, place: int, reply: object, parts: dict[str, float]
) -> None:
    chosen = environment(write(tmp_path / "dev.json", original(1)))
    session, _ = await play(chosen, chosen.tasks("dev")[0], [*GOLD[:place], reply, *GOLD[place + 1 :]])
    assert dict((await session.grade()).components) == ALL | parts


async def test_turns_without_a_reply_count_and_measures_are_of_turns_and_dialogues(tmp_path: Path) -> None:
    long, short = original(1), original(2)
    for part in short["annotation"].values():
        del part[2:]
    chosen = environment(write(tmp_path / "dev.json", long, short))
    trajectories = []
    for task, replies in zip(chosen.tasks("dev"), (list[object](GOLD[:1]), []), strict=True):
        session, _ = await play(chosen, task, replies)
        rewards = await session.grade()
        trajectories.append(
            Trajectory(id=task.id, task=task, member=0, seed=0, status=Status.COMPLETED, turns=(), rewards=rewards)
        )
    assert [each.rewards.total for each in trajectories] == [0.25, 0.0]
    assert "3 of 4 questions were not answered" in trajectories[0].rewards.explanation
    found = chosen.measure(trajectories)
    assert found["turn_correct"] == pytest.approx(100 / 6) and found["dialogue_correct"] == 0
    assert found["simple"] == {name: value for name, value in found.items() if name != "simple"}


def damaged(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(original(2))
    change(value)
    return value


DAMAGE: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda d: d.pop("id"), "field 'id': must be a text"),
    (lambda d: d.update(table=[["a", "b"], ["c"]]), "field 'table': ragged"),
    (lambda d: d.update(pre_text=3), "field 'pre_text': must be a text"),
    (lambda d: d["annotation"].pop("dialogue_break"), "field 'annotation.dialogue_break': must be a list"),
    (lambda d: d["annotation"]["turn_program"].pop(), "field 'annotation.turn_program': has 3 turns"),
    (lambda d: [part.clear() for part in d["annotation"].values()], "field 'annotation.dialogue_break': has 0 turns"),
    (lambda d: d["annotation"]["dialogue_break"].__setitem__(1, " "), "turn 2 must not be empty"),
    (lambda d: d["annotation"]["turn_program"].__setitem__(2, "minus(1, 2)"), "turn 3 is not a program of ConvFinQA"),
    (lambda d: d["annotation"]["turn_program"].__setitem__(0, "7"), "turn 1 gives 7.0, not 2200.0"),
    (lambda d: d["annotation"]["exe_ans_list"].__setitem__(3, "maybe"), "turn 4 must be a number, yes or no"),
    (lambda d: d["annotation"]["exe_ans_list"].__setitem__(3, True), "turn 4 must be a number, yes or no"),
    (lambda d: d.update(id="Single_C1/2019/page_1.pdf-1"), "occurs twice"),
]


@pytest.mark.parametrize(("change", "reason"), DAMAGE)
def test_a_bad_dialogue_is_named_and_can_be_left_out(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = write(tmp_path / "dev.json", original(1), damaged(change))
    with pytest.raises(DataError) as caught:
        environment(path)
    assert f"{path}, row 2, " in caught.value.message and reason in caught.value.message
    assert len(environment(path, skip_bad=True).tasks("dev")) == 1


def test_data_is_needed_and_no_reward_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="includes no dialogues"):
        environment(None)
    with pytest.raises(ConfigError, match="grades whole dialogues itself"):
        context = EnvironmentContext(snapshot=None, data=tmp_path, reward=object())  # type: ignore[arg-type]
        ConvFinQAEnvironment(None, context)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="ConvFinQA is not here")
async def test_the_published_dialogues_are_read_and_their_gold_replies_right() -> None:
    chosen = environment(PUBLISHED)
    rows = [chosen._row(task) for task in chosen.tasks("dev")]
    assert (len(rows), sum(len(row.turns) for row in rows)) == (421, 1490)
    for task, row in zip(chosen.tasks("dev"), rows, strict=True):
        session = await chosen.open(task, seed=0, sandbox=None)
        for turn in range(1, len(row.turns) + 1):
            await session.reply(chosen.solution(row, turn))
        assert dict((await session.grade()).components) == ALL
