"""Contract of environments: reproducible tasks, prompts and verdicts, and sessions that handle any call or reply.

`subject` is the environment; if its sessions need a sandbox, the fixture `provider` must start it. The functions
`check_...` are for tests that have more: the calls or replies of whole episodes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence

import pytest

from finqa_cli.contracts import Environment, Sandbox, SandboxProvider, Session, TextSession
from finqa_cli.errors import DataError
from finqa_cli.types import Message, Observation, Rewards, Task, ToolCall

EXPERT_TASKS = 4
MAX_TURNS = 50
"""Number of turns after which an expert that has not ended is stopped."""
HOSTILE_CALLS = (
    ToolCall(name="no_such_tool", arguments={}),
    ToolCall(name="", arguments={"": ""}),
    ToolCall(name="\ud800\x00", arguments={"x": "\ud800\x00"}),
)
HOSTILE_REPLIES = ("", "\x00", "\ud800", "<tool_call>{}</tool_call>", "[" * 100_000, '{"answer": NaN}', "9" * 10_000)


@pytest.fixture
async def sandbox(subject: Environment, request: pytest.FixtureRequest) -> AsyncIterator[Sandbox | None]:
    """Yields a sandbox for the sessions; None if they run in this process."""
    if (spec := subject.sandbox_spec()) is None:
        yield None
        return
    provider: SandboxProvider = request.getfixturevalue("provider")
    try:
        yield await provider.start(spec, {"finqa.run": "contract"})
    finally:
        await provider.close()


def test_splits_and_tasks_are_complete_and_stable(subject: Environment) -> None:
    """Ids are unique over all splits, tasks have a prompt and a cluster, and an unknown split raises a DataError."""
    check_tasks(subject)


def test_its_data_has_a_name_and_a_digest(subject: Environment) -> None:
    """Runs record name and digest, so that a run cannot be resumed on other data."""
    data = subject.data()
    assert data.name and data.digest and data == subject.data()


async def test_an_episode_opens_with_the_same_prompt_each_time(subject: Environment, sandbox: Sandbox | None) -> None:
    """The prompt is the same for the same task and seed; if `opening` returns a prompt, it is this one."""
    task = subject.tasks(subject.splits()[0])[0]
    first, second = [await subject.open(task, seed=1, sandbox=sandbox) for _ in range(2)]
    prompt = first.prompt()
    assert prompt.messages and prompt.messages[-1].role == "user"
    assert len({tool.name for tool in prompt.tools}) == len(prompt.tools)
    assert second.prompt() == prompt
    assert subject.opening(task) in (prompt, None)
    for session in (first, second, first):
        await session.close()


async def test_wrong_calls_and_any_text_are_handled(subject: Environment, sandbox: Sandbox | None) -> None:
    """Any call or text of a policy gets an answer as text, and the episode ends with a finite verdict."""
    task = subject.tasks(subject.splits()[0])[0]
    for reply in HOSTILE_REPLIES:
        session = await subject.open(task, seed=1, sandbox=sandbox)
        if isinstance(session, Session):
            for call in HOSTILE_CALLS:
                observation = await session.step(call)
                assert observation.text and observation.is_error, f"{call} is answered by {observation}"
        if isinstance(session, TextSession) or session.takes_text:
            assert isinstance(await session.reply(reply), Observation)
        _finite(await session.grade())
        await session.close()


async def test_an_episode_without_actions_gets_a_verdict(subject: Environment, sandbox: Sandbox | None) -> None:
    """The verdict is not a fault, and it is always the same."""
    task = subject.tasks(subject.splits()[0])[0]
    verdicts = []
    for _ in range(2):
        session = await subject.open(task, seed=1, sandbox=sandbox)
        verdicts.append(_finite(await session.grade()))
        await session.close()
    assert verdicts[0] == verdicts[1]


async def test_the_expert_earns_more_than_no_action(subject: Environment, sandbox: Sandbox | None) -> None:
    """The mean reward over the first tasks of every split is higher; equal turns get equal answers and verdicts."""
    earned, least, reasons = 0.0, 0.0, []
    for task in [task for split in subject.splits() for task in subject.tasks(split)[:EXPERT_TASKS]]:
        first, second = [await _play_expert(subject, task, sandbox) for _ in range(2)]
        if not first[0]:
            pytest.skip("it has no expert")
        assert first == second, f"{task.id}: the same turns are answered or judged in another way"
        idle = await subject.open(task, seed=1, sandbox=sandbox)
        least += _finite(await idle.grade()).total
        earned += first[1].total
        reasons.append(f"{task.id}: {first[1].explanation}")
        await idle.close()
    assert earned > least, f"the expert earns {earned:g}, nothing done {least:g}; {reasons[0]}"


async def _play_expert(
    environment: Environment, task: Task, sandbox: Sandbox | None
) -> tuple[list[Observation], Rewards]:
    """Plays an expert's episode; returns the answers of the environment and its verdict."""
    session = await environment.open(task, seed=1, sandbox=sandbox)
    messages, seen = [*session.prompt().messages], list[Observation]()
    while len(seen) < MAX_TURNS and not (seen and seen[-1].done):
        turn = environment.demonstrate_task(task.id, messages)
        if turn is None:
            break
        await session.begin_turn(turn)
        spoken = turn.words if turn.calls else turn.text
        said = Message(role="assistant", content=spoken, tool_call=turn.tool_call, further_calls=turn.further_calls)
        messages.append(said)
        for call in turn.calls:
            assert isinstance(session, Session), "the expert calls a tool in a session without tools"
            seen.append(await session.step(call))
            messages.append(Message(role="tool", name=call.name, content=seen[-1].text))
        if not turn.calls:
            seen.append(await session.reply(turn.text))
            messages.append(Message(role="user", content=seen[-1].text))
    rewards = _finite(await session.grade())
    await session.close()
    return seen, rewards


def _finite(rewards: Rewards) -> Rewards:
    assert all(math.isfinite(value) for value in (rewards.total, *rewards.components.values())), rewards
    return rewards


def check_tasks(environment: Environment) -> None:
    """Checks that splits have distinct names and that tasks are reproducible, complete and unique over all splits."""
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
        assert all(isinstance(environment.right_answer(task), str) for task in tasks)
        ids += [task.id for task in tasks]
    assert len(set(ids)) == len(ids)
    with pytest.raises(DataError):
        environment.tasks("no such split")


async def check_an_episode_without_answer(environment: Environment, sandbox: Sandbox | None) -> None:
    """Checks that an episode begins with a prompt, handles hostile calls, and is graded even without an answer."""
    session = await _open(environment, sandbox)
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


async def check_episodes_repeat(environment: Environment, sandbox: Sandbox | None, calls: Sequence[ToolCall]) -> None:
    """Checks that the same task, seed and calls give the same observations and verdict, also concurrently."""
    first, second = await _open(environment, sandbox), await _open(environment, sandbox)
    for call in calls:
        assert await first.step(call) == await second.step(call)
    assert await first.grade() == await second.grade()
    await first.close()
    await second.close()


async def check_a_finished_episode_is_over(
    environment: Environment, sandbox: Sandbox | None, calls: Sequence[ToolCall]
) -> None:
    """Checks that nothing is executed after the call that ends an episode, and that the verdict does not change."""
    session = await _open(environment, sandbox)
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
    """Checks episodes without tools: a prompt, any kind of reply, a reproducible verdict, and no effect after the end.

    Args:
        environment: An environment whose sessions are `TextSession`s.
        replies: Replies for the first task; the last one ends the episode and is right.
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
    """Checks that the demonstrations of the first tasks of every split are right, and that other tasks have none."""
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
    assert environment.demonstrate([Message(role="user", content="a question that is not in the data")]) is None


async def _open_text(environment: Environment) -> TextSession:
    task: Task = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(task, seed=1, sandbox=None)
    assert isinstance(session, TextSession) and not isinstance(session, Session)
    return session


async def _open(environment: Environment, sandbox: Sandbox | None) -> Session:
    task: Task = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(task, seed=1, sandbox=sandbox)
    assert isinstance(session, Session)
    return session
