"""Training data: the questions of the training split, and checks for overlap with evaluation data (`split_guard`)."""

from __future__ import annotations

import asyncio
import re
import shlex
import string
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.data import LocalSnapshots
from finqa_cli.data.snapshots.compile import TASKS
from finqa_cli.data.split_guard import check_demonstrations, check_other_data, check_permission, check_training_data
from finqa_cli.errors import ConfigError, DataError, FinqaError
from finqa_cli.evaluation.cluster_nouns import cluster_noun, plural_noun
from finqa_cli.evaluation.evaluate import held_out_split
from finqa_cli.extend import registry
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import ENVIRONMENT, Choice, Settings, from_public_dict
from finqa_cli.types import DataInfo, Prompt, Snapshot, Task
from finqa_cli.types.splits import SPLIT_NAMES, split_of_name
from finqa_cli.wiring.build import open_environment, try_environment
from finqa_cli.wiring.stage import Stage

_SETTING = "data.max_prompt_tokens"


def split_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """Return all tasks of the training split.

    Raises:
        DataError: The split is empty or does not exist.
    """
    split = settings.data.train_split
    if not (tasks := environment.tasks(split)):
        raise DataError(f"Split {split!r} of {environment.data().name!r} has no questions.")
    return tasks


async def training_tasks(parts: Stage, settings: Settings, reporter: Reporter) -> Sequence[Task]:
    """Return the tasks of the training split whose prompt has at most `data.max_prompt_tokens` tokens of the codec.

    The setting corresponds to verl's `data.max_prompt_length` with `filter_overlong_prompts`. The reporter shows how
    many tasks are left out.

    Raises:
        DataError: There are no tasks, or all prompts are too long.
        ConfigError: A limit is set, but prompts are only known in a sandbox, or the engine uses no tokens.
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
            f"{_SETTING} counts tokens, but engine {settings.engine.name!r} does not use tokens.",
            remedy=f"leave out {_SETTING}, or use --engine transformers",
        )
    prompts = [await _prompt(parts.environment, task) for task in tasks]
    lengths = await asyncio.to_thread(lambda: [len(codec.opening(prompt)) for prompt in prompts])
    kept = [task for task, length in zip(tasks, lengths, strict=True) if length <= limit]
    left_out = f"{len(tasks) - len(kept)} of {len(tasks)} training questions are left out: "
    if not kept:
        raise DataError(
            f"{left_out}no prompt has {limit} tokens or fewer; the shortest has {min(lengths)}.",
            remedy=f"--set {_SETTING}={max(lengths)}",
        )
    reporter.line(f"{left_out}their prompts have more than {limit} tokens ({_SETTING}).")
    return kept


async def _prompt(environment: Environment, task: Task) -> Prompt:
    if (prompt := environment.opening(task)) is not None:
        return prompt
    session = await environment.open(task, seed=0, sandbox=None)
    try:
        return session.prompt()
    finally:
        await session.close()


def guard_training(settings: Settings, reporter: Reporter, environment: Environment | None = None) -> None:
    """Check that the training split does not overlap with evaluation data: the other splits, and other snapshots.

    Args:
        settings: Settings of the training.
        reporter: Shows what cannot be compared.
        environment: The environment with its data; None: that of the settings.

    Raises:
        DataError: The data is for evaluation only, the split does not exist, or it overlaps with another split or with
            a snapshot that is for evaluation only.
    """
    environment, chosen = environment or open_environment(settings, reporter), settings.data
    check_permission(environment.data(), allow_evaluation_only=chosen.allow_evaluation_only)
    evaluated = held_out_split(environment, settings)
    held_out = _other_splits(environment, {chosen.train_split} - {evaluated}, *filter(None, [evaluated]))
    training = environment.tasks(chosen.train_split)
    check_training_data(
        environment.data(),
        training,
        held_out,
        allow_evaluation_only=chosen.allow_evaluation_only,
        allow_overlap=chosen.allow_overlap,
        division=lambda: _division(settings, training),
        cluster=_noun(settings),
    )
    _check_other_snapshots(settings, training, environment.data(), reporter)


def guard_demonstrations(
    settings: Settings, sources: Sequence[Path], used: Collection[str], reporter: Reporter
) -> None:
    """Check the tasks that the used demonstrations solve, and the data that they come from.

    A run folder records its data; if that data is still on this machine and unchanged, its other splits are compared
    too. A single trajectories file only has its tasks. Both are compared with the snapshots that are for evaluation
    only.

    Args:
        settings: Settings of the training.
        sources: Run folders or trajectories files.
        used: Ids of the demonstrations that are used.
        reporter: Shows what cannot be compared.

    Raises:
        DataError: Tasks are of the split `test`, the data is for evaluation only or has overlapping splits, or the
            tasks overlap with a snapshot that is for evaluation only.
    """
    for source in sources:
        run = source if source.is_dir() else source.parent
        tasks = _solved_tasks(source / "trajectories.jsonl" if source.is_dir() else source, used)
        recorded = _recorded_data(run)
        environment = _environment_of(run, settings, recorded, reporter)
        data = recorded or (environment.data() if environment else None)
        allowed = settings.data.allow_evaluation_only
        check_demonstrations(str(source), tasks, data, allow_evaluation_only=allowed)
        if environment is not None and not settings.data.allow_overlap:
            held_out = _other_splits(environment, {task.split for task in tasks})
            check_training_data(
                environment.data(),
                tasks,
                held_out,
                allow_evaluation_only=allowed,
                division=lambda: "demonstrations of data whose splits do not overlap",
                cluster=_noun(settings),
            )
        _check_other_snapshots(settings, tasks, data, reporter)


def _noun(settings: Settings) -> tuple[str, str]:
    """Return what the environment calls a cluster, singular and plural."""
    noun = cluster_noun(settings.environment.name, settings.environment.options)
    return noun, plural_noun(noun)


def _division(settings: Settings, training: Sequence[Task]) -> str:
    """Return a remedy: how to divide the data of these settings so that its splits do not overlap."""
    component, path = registry().find("environment", settings.environment.name), settings.data.path
    noun, _ = _noun(settings)
    if not component.snapshotless:
        return f"split it by {noun} when it is imported (finqa data import tables --help, --splits)"
    options = _cluster_options(settings, component.clustered_by)
    files = [] if path is None else _divisible_files(settings, path, options, {task.id for task in training})
    if path is None or not files:
        return f"put all tasks of one {noun} into one split, or leave out the splits: tasks are then split by {noun}"
    assigned = [word for name, value in options.items() for word in ("--set", f"environment.options.{name}={value}")]
    words = [*map(str, files), "--for", component.name, *assigned, "--split-by", "cluster", "--out", "divided"]
    return f"split it by {noun} (finqa data prepare {shlex.join(words)}) and --data divided"


def _cluster_options(settings: Settings, clustered_by: str) -> dict[str, Any]:
    """Return the options of the environment that decide what a cluster is, as far as they are set."""
    named = [name for _, name, _, _ in string.Formatter().parse(clustered_by) if name]
    return {name: settings.environment.options[name] for name in named if name in settings.environment.options}


def _divisible_files(
    settings: Settings, path: Path, options: Mapping[str, Any], trained: Collection[str]
) -> list[Path]:
    """Return the files at a path whose rows can be divided: those that the environment reads training tasks from.

    Files of a split `test` are left out, because their rows must not become training data. A file counts with its
    development file, which may be divided as well.
    """
    found = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    named = [file for file in found if split_of_name(file) in ("train", "dev") or file == path]
    choice = Choice(name=settings.environment.name, options=dict(options))
    alone = settings.model_copy(update={"environment": choice, "reward": Choice(name=ENVIRONMENT)})
    read = {}
    for file in named:
        try:
            environment = try_environment(alone, file, file.parent)
        except FinqaError:
            continue
        read[file] = {task.id for split in environment.splits() for task in environment.tasks(split)}
    used = [file for file, tasks in read.items() if tasks & set(trained)]
    of_training = {_without_split(file) for file in used}
    return [file for file in read if file in used or _without_split(file) in of_training]


def _without_split(file: Path) -> str:
    """Return a file's name without the word for its split and without numbers: `train_4b_20` is `_4b_`'s."""
    words = re.split(r"[^a-z0-9]+", file.stem.lower())
    return " ".join(word for word in words if word not in SPLIT_NAMES and not word.isdigit())


def _check_other_snapshots(
    settings: Settings, training: Sequence[Task], data: DataInfo | None, reporter: Reporter
) -> None:
    """Compare the training tasks with every local snapshot that is for evaluation only, except their own.

    Args:
        settings: Settings with the folder of snapshots, and with `data.allow_overlap`, which skips the check.
        training: Tasks that are used for training.
        data: The data that they come from, if it is known.
        reporter: Shows damaged snapshots, which cannot be compared.

    Raises:
        DataError: There is an overlap.
    """
    if settings.data.allow_overlap:
        return
    own = data.digest if data is not None and data.evaluation_only else ""
    for snapshot in LocalSnapshots(settings.data.home).list():
        if error := snapshot.metadata.get("error"):
            reporter.line(f"Not compared with what is trained on: {error}")
        elif snapshot.metadata.get("evaluation_only") is True and snapshot.digest != own:
            check_other_data(training, snapshot.name, _snapshot_tasks(snapshot))


def _snapshot_tasks(snapshot: Snapshot) -> list[Task]:
    return [
        Task(id=task["id"], prompt=task["user_query"], split=task["split"], cluster=task["company"])
        for task in read_jsonl(snapshot.path / TASKS)
    ]


def _other_splits(environment: Environment, without: Collection[str], *more: str) -> list[Task]:
    splits = [split for split in dict.fromkeys((*more, *environment.splits())) if split not in without]
    return [task for split in splits for task in environment.tasks(split)]


def _solved_tasks(path: Path, used: Collection[str]) -> list[Task]:
    fields = ("id", "prompt", "split", "cluster")
    return [
        Task(**{field: str(record["task"].get(field, "")) for field in fields})
        for record in read_jsonl(path)
        if record["id"] in used
    ]


def _recorded_data(run: Path) -> DataInfo | None:
    """Return what an evaluation recorded about its data; None if it recorded nothing."""
    data = read_document(run / "report.json").get("data")
    if not isinstance(data, dict) or not isinstance(data.get("digest"), str):
        return None
    name, evaluation_only = str(data.get("name", "")), data.get("evaluation_only") is True
    return DataInfo(name=name, digest=data["digest"], evaluation_only=evaluation_only)


def _environment_of(run: Path, settings: Settings, recorded: DataInfo | None, reporter: Reporter) -> Environment | None:
    """Return the environment of a run with the same data; None if its settings or its data are no longer available."""
    if not (run / "settings.json").is_file():
        return None
    try:
        theirs = from_public_dict(read_settings(run))
        data = theirs.data.model_copy(update={"home": settings.data.home})
        environment = open_environment(
            theirs.model_copy(update={"data": data, "reward": Choice(name=ENVIRONMENT)}), reporter
        )
        digest = recorded.digest if recorded else read_document(run / "run.json").get("snapshot digest")
        return environment if digest in (None, environment.data().digest) else None
    except FinqaError as error:
        reporter.line(f"The data behind {run} cannot be compared with its evaluation splits: {error.message}")
        return None
