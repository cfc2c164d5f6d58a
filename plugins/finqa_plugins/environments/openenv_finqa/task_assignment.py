"""Beginning an episode of exactly the wanted question, also on a server that deals questions as it likes.

OpenEnv's own FinQA server ignores `question_id` and `seed`: each session deals all questions in an order of its own,
one a reset, and only `state` tells which. So the state is always asked, and the session is reset until it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import Task
from finqa_plugins.environments.openenv_finqa.finqa_client import OpenEnvClient


async def deal(client: OpenEnvClient, task: Task, *, seed: int, limit: int) -> None:
    """Resets, at most `limit` times, until the server's question is the task's.

    Raises:
        SandboxError: The connection is lost.
        EnvironmentFault: The server refuses, asks another question under this id, or never deals it.
    """
    for _ in range(limit):
        await client.reset(question_id=task.id, seed=seed)
        if asks(await client.state(), task):
            return
    raise EnvironmentFault(f"The environment server did not deal question {task.id!r} in {limit} resets.")


def asks(state: Mapping[str, Any], task: Task) -> bool:
    """Whether this is the state of an episode of the task; by text and company where the server tells no id.

    Raises:
        EnvironmentFault: The id is right, but text or company is another's: its data are not those of the snapshot.
    """
    told, company, text = (state.get(key) for key in ("question_id", "current_company", "current_question"))
    same = (company, text) == (task.cluster, task.prompt)
    if told is None or told == "":
        return same
    if str(told) == task.id and not same:
        raise EnvironmentFault(f"The environment server asks another question under the id {task.id!r}.")
    return str(told) == task.id
