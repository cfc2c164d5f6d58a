"""The `mbpp` environment fulfils the contract, and the references of all embedded problems are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox

from finqa_cli.contracts import Environment, EnvironmentContext, Sandbox
from finqa_cli.types import AssistantTurn, DataInfo, ExecutionSpec, Message, Task, Trajectory
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment
from finqa_testing.contract import environment_suite as suite

pytestmark = pytest.mark.thorough


class Boxed(Environment):
    """The environment, with one sandbox for all sessions: what the pool does."""

    def __init__(self) -> None:
        self._inner = MbppEnvironment(MbppConfig(), EnvironmentContext(snapshot=None))
        self._sandbox = PlainSandbox()

    def data(self) -> DataInfo:
        return self._inner.data()

    def sandbox_spec(self) -> ExecutionSpec:
        return self._inner.sandbox_spec()

    def splits(self) -> Sequence[str]:
        return self._inner.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        return self._inner.tasks(split)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        return self._inner.demonstrate(messages)

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        return self._inner.measure(trajectories)

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Any:
        return await self._inner.open(task, seed=seed, sandbox=sandbox or self._sandbox)


def test_tasks() -> None:
    suite.check_tasks(Boxed())


async def test_episodes() -> None:
    environment = Boxed()
    task = environment.tasks("train")[0]
    turn = environment.demonstrate([Message(role="user", content=task.prompt)])
    assert turn is not None
    await suite.check_text_episodes(environment, ["```python\nx = 1\n```", turn.text])


async def test_references_are_right() -> None:
    environment = Boxed()
    await suite.check_demonstrations(environment, count=5)


@pytest.mark.slow
async def test_every_reference_is_right() -> None:
    await suite.check_demonstrations(Boxed(), count=99)
