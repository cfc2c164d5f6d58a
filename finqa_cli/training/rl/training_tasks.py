"""Which questions are trained on: those of the training split; where a limit is set, without those of long prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from finqa_cli.contracts import Environment
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import Prompt, Task
from finqa_cli.wiring.stage import Stage

_SETTING = "data.max_prompt_tokens"


def split_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """All tasks of the training split.

    Raises:
        DataError: There is none.
    """
    split = settings.data.train_split
    if not (tasks := environment.tasks(split)):
        raise DataError(f"Split {split!r} of {environment.data().name!r} has no questions.")
    return tasks


async def training_tasks(parts: Stage, settings: Settings, reporter: Reporter) -> Sequence[Task]:
    """The tasks of the training split whose prompt has at most `data.max_prompt_tokens` tokens, as the codec counts.

    It is verl's `data.max_prompt_length` with `filter_overlong_prompts`. The reporter is told how many are left out.

    Raises:
        DataError: There is none, or all are too long.
        ConfigError: A limit is set, and prompts are only known in a sandbox, or the engine knows no tokens.
    """
    tasks, limit = split_tasks(parts.environment, settings), settings.data.max_prompt_tokens
    if limit is None:
        return tasks
    if parts.environment.sandbox_spec() is not None and parts.environment.opening(tasks[0]) is None:
        raise ConfigError(
            f"{_SETTING} needs all prompts before the first episode, and in environment {settings.environment.name!r}, "
            "which has no method `opening`, each takes a sandbox.",
            remedy=f"leave out {_SETTING}",
        )
    if (codec := parts.codec) is None:
        raise ConfigError(
            f"{_SETTING} counts tokens, of which engine {settings.engine.name!r} knows nothing.",
            remedy=f"leave out {_SETTING}, or use --engine transformers",
        )
    prompts = [await _prompt(parts.environment, task) for task in tasks]
    lengths = await asyncio.to_thread(lambda: [len(codec.opening(prompt)) for prompt in prompts])
    kept = [task for task, length in zip(tasks, lengths, strict=True) if length <= limit]
    told = f"{len(tasks) - len(kept)} of {len(tasks)} questions to train on are left out: "
    if not kept:
        raise DataError(
            f"{told}no prompt has {limit} tokens or fewer; the shortest has {min(lengths)}.",
            remedy=f"--set {_SETTING}={max(lengths)}",
        )
    reporter.line(f"{told}their prompts have more than {limit} tokens ({_SETTING}).")
    return kept


async def _prompt(environment: Environment, task: Task) -> Prompt:
    if (prompt := environment.opening(task)) is not None:
        return prompt
    session = await environment.open(task, seed=0, sandbox=None)
    try:
        return session.prompt()
    finally:
        await session.close()
