"""What every environment must do. A plugin's own tests call these with its environment and, if needed, a box."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from finqa_cli.contracts import Environment, Sandbox, Session
from finqa_cli.errors import DataError
from finqa_cli.types import Observation, Task, ToolCall

HOSTILE_CALLS = (
    ToolCall(name="no_such_tool", arguments={}),
    ToolCall(name="", arguments={"": ""}),
    ToolCall(name="\ud800\x00", arguments={"x": "\ud800\x00"}),
)


def check_tasks(environment: Environment) -> None:
    """Splits are named once, tasks are stable, complete and unique over all splits."""
    assert isinstance(environment, Environment)
    splits = environment.splits()
    assert splits
    assert len(set(splits)) == len(splits)
    ids: list[str] = []
    for split in splits:
        tasks = environment.tasks(split)
        assert tasks
        assert list(tasks) == list(environment.tasks(split))
        assert all(task.split == split and task.id and task.prompt and task.cluster for task in tasks)
        ids += [task.id for task in tasks]
    assert len(set(ids)) == len(ids)
    with pytest.raises(DataError):
        environment.tasks("no such split")


async def check_an_episode_without_answer(environment: Environment, box: Sandbox | None) -> None:
    """It opens with a prompt, survives hostile calls, and is graded even though nothing was answered."""
    session = await _open(environment, box)
    prompt = session.prompt()
    assert prompt.messages
    assert prompt.messages[-1].role == "user"
    assert len({tool.name for tool in prompt.tools}) == len(prompt.tools)
    for call in HOSTILE_CALLS:
        observation = await session.step(call)
        assert observation.text
        assert observation.is_error
        assert not observation.done
    rewards = await session.grade()
    assert rewards.total <= 0
    assert rewards.explanation
    await session.close()
    await session.close()


async def check_episodes_repeat(environment: Environment, box: Sandbox | None, calls: Sequence[ToolCall]) -> None:
    """The same task, seed and calls give the same observations and verdict, also side by side."""
    first, second = await _open(environment, box), await _open(environment, box)
    for call in calls:
        assert await first.step(call) == await second.step(call)
    assert await first.grade() == await second.grade()
    await first.close()
    await second.close()


async def check_a_finished_episode_is_over(
    environment: Environment, box: Sandbox | None, calls: Sequence[ToolCall]
) -> None:
    """After the call that ends it nothing is carried out any more, and the verdict stands."""
    session = await _open(environment, box)
    last = Observation(text="")
    for call in calls:
        last = await session.step(call)
    assert last.done
    rewards = await session.grade()
    again = await session.step(calls[-1])
    assert again.done
    assert again.is_error
    assert (await session.grade()).total == rewards.total
    await session.close()


async def _open(environment: Environment, box: Sandbox | None) -> Session:
    task: Task = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(task, seed=1, sandbox=box)
    assert isinstance(session, Session)
    return session
