"""What every environment must do. A plugin's own tests call these with its environment and, if needed, a box."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from finqa_cli.contracts import Environment, Sandbox, Session, TextSession
from finqa_cli.errors import DataError
from finqa_cli.types import Message, Observation, Task, ToolCall

HOSTILE_CALLS = (
    ToolCall(name="no_such_tool", arguments={}),
    ToolCall(name="", arguments={"": ""}),
    ToolCall(name="\ud800\x00", arguments={"x": "\ud800\x00"}),
)
HOSTILE_REPLIES = ("", "\x00", "\ud800", "<tool_call>{}</tool_call>", "[" * 100_000, '{"answer": NaN}', "9" * 10_000)


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


async def check_text_episodes(environment: Environment, replies: Sequence[str]) -> None:
    """Without tools: a prompt, replies of any kind, a verdict that repeats, and nothing after the end.

    Args:
        environment: Its sessions are `TextSession`s.
        replies: The last one ends an episode of the first task and is right.
    """
    silent = await _open_text(environment)
    prompt = silent.prompt()
    assert environment.opening(environment.tasks(environment.splits()[0])[0]) in (prompt, None)
    assert prompt.messages and prompt.messages[-1].role == "user" and not prompt.tools
    rewards = await silent.grade()
    assert rewards.total <= 0 and rewards.explanation
    await silent.close()
    await silent.close()
    for hostile in HOSTILE_REPLIES:
        session = await _open_text(environment)
        assert (await session.reply(hostile)).text
        rewards = await session.grade()
        assert rewards.total <= 0 and rewards.explanation and "\n" not in rewards.explanation
    first, second = await _open_text(environment), await _open_text(environment)
    assert first.prompt() == second.prompt() == prompt
    for reply in replies:
        observation = await first.reply(reply)
        assert observation == await second.reply(reply)
    assert observation.done
    rewards = await first.grade()
    assert rewards == await second.grade() and rewards.total > 0
    again = await first.reply(HOSTILE_REPLIES[0])
    assert again.done and again.is_error and await first.grade() == rewards


async def check_demonstrations(environment: Environment, count: int) -> None:
    """The gold solutions of the first tasks of every split are right, and of nothing else there are any."""
    for task in [task for split in environment.splits() for task in environment.tasks(split)[:count]]:
        session = await environment.open(task, seed=1, sandbox=None)
        assert isinstance(session, TextSession)
        messages = [*session.prompt().messages]
        done = False
        while not done:
            turn = environment.demonstrate(messages)
            assert turn is not None
            assert turn.text not in "".join(message.content for message in messages)
            observation = await session.reply(turn.text)
            done = observation.done
            messages += [Message(role="assistant", content=turn.text)]
            messages += [] if done else [Message(role="user", content=observation.text)]
        assert (await session.grade()).total >= 1
        assert environment.demonstrate(messages) is None
    assert environment.demonstrate([]) is None
    assert environment.demonstrate([Message(role="user", content="a question of nobody")]) is None


async def _open_text(environment: Environment) -> TextSession:
    task: Task = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(task, seed=1, sandbox=None)
    assert isinstance(session, TextSession) and not isinstance(session, Session)
    return session


async def _open(environment: Environment, box: Sandbox | None) -> Session:
    task: Task = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(task, seed=1, sandbox=box)
    assert isinstance(session, Session)
    return session
