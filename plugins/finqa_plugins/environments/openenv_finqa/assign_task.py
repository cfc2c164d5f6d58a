"""Reset a FinQA server until its question is the one that is wanted.

OpenEnv's own FinQA server ignores `question_id` and `seed`: each session yields all questions in an order of its own,
one a reset, and only `state` tells which. So `assign_task` always requests the state, and resets until it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import Task
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient


async def assign_task(client: OpenEnvClient, task: Task, *, seed: int, limit: int) -> None:
    """Reset, at most `limit` times, until the server's question is the task's.

    Raises:
        SandboxError: The connection is lost.
        EnvironmentFault: The server refuses, has another question under this id, or never yields it.
    """
    for _ in range(limit):
        await client.reset(question_id=task.id, seed=seed)
        if is_about(await client.state(), task):
            return
    raise EnvironmentFault(f"The environment server did not yield question {task.id!r} in {limit} resets.")


def is_about(state: Mapping[str, Any], task: Task) -> bool:
    """Whether this is the state of an episode of the task; by text and company where the server gives no id.

    Raises:
        EnvironmentFault: The id is right, but text or company differs: its data are not those of the snapshot.
    """
    question_id, company, text = (state.get(key) for key in ("question_id", "current_company", "current_question"))
    same = (company, text) == (task.cluster, task.prompt)
    if question_id is None or question_id == "":
        return same
    if str(question_id) == task.id and not same:
        raise EnvironmentFault(f"The environment server has another question under the id {task.id!r}.")
    return str(question_id) == task.id
