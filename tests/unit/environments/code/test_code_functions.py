from __future__ import annotations

from fixtures.code_play import environment, judged

from finqa_cli.types import Message
from finqa_plugins.environments.code.function_tasks import generated_tasks


def test_the_family_is_large_stable_and_without_repeats() -> None:
    tasks = generated_tasks(1800, seed=0)
    assert len(tasks) == len({task.prompt for task in tasks}) == len({task.id for task in tasks}) > 1500
    assert tasks[:100] == generated_tasks(100, seed=0) != generated_tasks(100, seed=1)
    splits = [task.split for task in tasks]
    assert all(0.09 < splits.count(split) / len(splits) < 0.11 for split in ("dev", "test"))


def test_held_out_tasks_are_new_combinations_of_words_that_are_trained_on() -> None:
    tasks = generated_tasks(400, seed=0)
    words = {word for task in tasks if task.split == "train" for word in task.prompt.split()}
    held_out = [task for task in tasks if task.split != "train"]
    assert {word for task in held_out for word in task.prompt.split()} <= words


def test_careless_demonstrations_are_a_share_and_forget_to_return() -> None:
    played = environment(family="functions", tasks=400, careless=0.7)
    shown = [played.demonstrate([Message(role="user", content=task.prompt)]) for task in played.tasks("train")]
    texts = [turn.text for turn in shown if turn is not None]
    assert len(texts) == 320
    share = sum("return" not in text for text in texts) / len(texts)
    assert 0.6 < share < 0.8


async def test_careless_and_careful_versions_get_what_they_deserve() -> None:
    played = environment(family="functions", tasks=10)
    task = next(task for task in generated_tasks(10, seed=0) if task.split == "train")
    assert (await judged(played, task.id, task.solution)).total == 1.0
    careless = await judged(played, task.id, task.careless)
    assert careless.total == 0.0 and careless.components["error"] == 0.0
