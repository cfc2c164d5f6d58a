"""Reads tasks that a user gives as mappings, and adds ids, splits and clusters that are missing."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json

from finqa_cli.errors import DataError
from finqa_cli.types import Message, Task
from finqa_cli.types.splits import SPLIT_NAMES
from finqa_plugins.environments._task_files.content_parts import read_content

HELD_OUT = 0.15
"""Share of the clusters in each of `dev` and `test` if the tasks name no split."""

_ROLES = ("system", "user", "assistant")
_TEXTS = ("id", "split", "cluster", "kind")
_ANSWERS = ("answer", "truth", "target", "expected", "solution")
"""Keys of the right answer in a task; the first one found is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTask:
    """A task with the values that the user's code gets for it.

    Attributes:
        task: The task in finqa's form.
        messages: The messages that open an episode; empty if the environment provides them.
        values: All keys of the mapping that the user gave.
    """

    task: Task
    messages: tuple[Message, ...]
    values: Mapping[str, Any]


def find_answer(values: Mapping[str, Any]) -> str:
    """Return the right answer in the mapping of a task: a text as it is, anything else as JSON; empty without one."""
    found = next((values[name] for name in _ANSWERS if values.get(name) is not None), "")
    return found if isinstance(found, str) else to_json(found, fallback=repr).decode()


async def gather(yielded: Any) -> list[Any]:
    """Return a list of the tasks that `tasks()` returned: as an iterable, an async iterable, or an awaitable of one."""
    if isinstance(yielded, AsyncIterable):
        return [each async for each in yielded]
    if inspect.isawaitable(yielded):
        return await gather(await yielded)
    return list(yielded)


def read_tasks(given: Iterable[Any], place: str, *, bare: bool = False) -> list[GivenTask]:
    """Read the tasks that a user gives.

    Args:
        given: The tasks, mappings or texts.
        place: Where they come from, such as `FILE:LINE` of the function that yields them.
        bare: Whether tasks need no prompt because the environment provides it; the text of such a task is its JSON.

    Raises:
        DataError: There is no task, an id appears twice, or a task has no prompt; messages count tasks from 1.
    """
    tasks = [_read(each, number, f"Task {number} of {place}", bare) for number, each in enumerate(given, start=1)]
    if not tasks:
        raise DataError(f"There are no tasks ({place}).", remedy=f"correct {place}")
    twice = [name for name, count in Counter(each.task.id for each in tasks).items() if count > 1]
    if twice:
        raise DataError(f"The id {twice[0]!r} belongs to two tasks ({place}).", remedy="give each task another id")
    named = sum(bool(each.task.split) for each in tasks)
    if named == 0:
        return _divide(tasks)
    if named < len(tasks):
        unnamed = next(each.task.id for each in tasks if not each.task.split)
        raise DataError(
            f"Task {unnamed!r} of {place} has no split, but {named} others do.",
            remedy="set a split for all tasks, or for none",
        )
    return tasks


def tasks_of_split(splits: Mapping[str, Sequence[Task]], split: str, source: str) -> Sequence[Task]:
    """Return the tasks of a split.

    Raises:
        DataError: There is no such split.
    """
    name = SPLIT_NAMES.get(split, split)
    found = splits.get(name, ())
    if not found:
        raise DataError(
            f"{source} has no split {split!r}; it has: {', '.join(splits)}.",
            remedy=f"--split {next(iter(splits))}",
        )
    return found


def digest_of(code: str, tasks: Sequence[GivenTask]) -> str:
    """Return the digest `sha256:...` of the code and the tasks."""
    whole = hashlib.sha256(code.encode())
    for each in tasks:
        whole.update(to_json(dict(each.values), fallback=repr))
    return f"sha256:{whole.hexdigest()}"


def _read(given: Any, number: int, place: str, bare: bool) -> GivenTask:
    if isinstance(given, str):
        given = {"prompt": given}
    if not isinstance(given, Mapping):
        raise DataError(f"{place} is a {type(given).__name__}, not a mapping.", remedy='write {"prompt": "..."}')
    messages = () if bare and given.get("prompt") is None else _messages(given.get("prompt"), place)
    facts = {name: given[name] for name in _TEXTS if given.get(name) is not None}
    wrong = [name for name, value in facts.items() if not isinstance(value, str | int)]
    if wrong:
        raise DataError(f"{place}: {wrong[0]} is a {type(facts[wrong[0]]).__name__}.", remedy=f"make {wrong[0]} a text")
    identity = str(facts.get("id", f"{number:05d}"))
    split = str(facts.get("split", ""))
    task = Task(
        id=identity,
        prompt=messages[-1].content if messages else to_json(dict(given), fallback=repr).decode(),
        split=SPLIT_NAMES.get(split, split),
        cluster=str(facts.get("cluster", identity)),
        kind=str(facts.get("kind", "")),
    )
    return GivenTask(task=task, messages=messages, values=dict(given))


def _messages(prompt: Any, place: str) -> tuple[Message, ...]:
    """Messages of a prompt: a text, or a list of mappings with `role` and `content` that ends with the user's.

    A content is a text, or a list of texts and images.
    """
    rows: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        if all(row["role"] in _ROLES for row in rows) and rows[-1]["role"] == "user":
            contents = [read_content(row["content"]) for row in rows]
            pairs = zip(rows, contents, strict=True)
            return tuple(Message(role=row["role"], content=text, images=images) for row, (text, images) in pairs)
    except (TypeError, LookupError, ValueError):
        pass
    raise DataError(
        f"{place} has no prompt: a text, or messages with role and content of which the last is the user's.",
        remedy='write {"prompt": "..."}',
    )


def _divide(tasks: Sequence[GivenTask]) -> list[GivenTask]:
    """Assign tasks to splits by a hash of their clusters, so that all tasks of a cluster are in one split."""
    clusters = sorted({each.task.cluster for each in tasks}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    held_out = max(1, round(HELD_OUT * len(clusters))) if len(clusters) > 2 else 0
    test = held_out or int(len(clusters) == 2)
    names = ["test"] * test + ["dev"] * held_out
    split_of = dict(zip(clusters, [*names, *["train"] * (len(clusters) - len(names))], strict=True))
    return [replace(each, task=replace(each.task, split=split_of[each.task.cluster])) for each in tasks]
