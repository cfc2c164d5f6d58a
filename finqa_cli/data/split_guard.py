"""The split guard: keeps evaluation data out of training.

Two rules. Data that is marked for evaluation only (`evaluation_only`) is never trained on. And what is used for
training must
share nothing with what is evaluated on: no cluster (for FinQA the company), no question and, within a data set, no id.

Texts are compared without case, punctuation and spacing. Within a data set a question is the pair of its cluster and
its text, since "What was revenue in 2023?" about two companies is two tasks with two truths; as a shared pair implies a
shared cluster, this only identifies these questions. Tasks without a cluster are compared by text alone.

Data sets write one company in many ways (`alphabet`, `GOOGL`), so between two of them the text alone decides, without
the company that prompts of OpenEnv and rLLM name first. Texts of fewer than 6 words are too short for that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo, Task

ALLOW_EVALUATION_DATA = "--allow-evaluation-data"
ALLOW_OVERLAP = "--allow-overlap"
_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 100
_FEWEST_WORDS = 6
_NAMED_COMPANY = re.compile(r"\Afor company .+? here is the question ")
"""How prompts of OpenEnv and rLLM begin, normalized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Common parts of two sets of tasks; each list is sorted.

    Attributes:
        ids: Task ids in both.
        clusters: Clusters in both, as the training side writes them.
        questions: Questions in both, as the training side writes them.
    """

    ids: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids or self.clusters or self.questions)


def check_training_data(
    data: DataInfo,
    training: Sequence[Task],
    evaluation: Sequence[Task],
    *,
    allow_evaluation_only: bool = False,
    allow_overlap: bool = False,
    division: str = "split the train and dev files by company",
) -> None:
    """Refuses to train on these tasks.

    Args:
        data: Their data set.
        training: The tasks to train on.
        evaluation: The tasks that are evaluated on.
        allow_evaluation_only: Whether the user allows training on data for evaluation.
        allow_overlap: Whether the user allows the two sets to overlap.
        division: How the data is divided so that it does not overlap.

    Raises:
        DataError: The data or the split is for evaluation only, or the two sets overlap; the message has counts
            and examples.
    """
    check_permission(data, allow_evaluation_only=allow_evaluation_only)
    if not allow_evaluation_only and any(task.split == "test" for task in training):
        raise DataError(
            f"The split test of {data.name!r} is for evaluation only, not for training.",
            remedy=f"--set data.train_split=train, or pass {ALLOW_EVALUATION_DATA}",
        )
    if allow_overlap:
        return
    overlap = find_overlap(training, evaluation)
    if overlap:
        splits = ", ".join(dict.fromkeys(task.split for task in evaluation))
        raise DataError(
            f"The training data ({data.name!r}, split {training[0].split}) overlaps with the "
            f"evaluation data (split {splits}): "
            f"{describe(overlap)}. The evaluation would measure memorization.",
            remedy=f"{division}, or pass {ALLOW_OVERLAP}",
        )


def check_other_data(training: Sequence[Task], name: str, evaluation: Sequence[Task]) -> None:
    """Refuses to train on what another data set, which is for evaluation only, asks.

    Args:
        training: The tasks to train on.
        name: Name of the other data set's snapshot.
        evaluation: All tasks of the other data set.

    Raises:
        DataError: They share companies or questions; the message has counts and examples.
    """
    if overlap := find_overlap_of_sets(training, evaluation):
        raise DataError(
            f"The training data overlaps with the snapshot {name!r}, which is for evaluation only: "
            f"{describe(overlap)}. An evaluation on it would measure memorization.",
            remedy=f"train on other data, or pass {ALLOW_OVERLAP}",
        )


def check_permission(data: DataInfo, *, allow_evaluation_only: bool = False) -> None:
    """Refuses to train on data that is kept for evaluation.

    Raises:
        DataError: It is for evaluation only, and the user has not allowed it for training.
    """
    if data.evaluation_only and not allow_evaluation_only:
        raise DataError(
            f"{data.name!r} cannot be used for training: it is marked for evaluation only.",
            remedy=f"train on other data (finqa snapshot list), or pass {ALLOW_EVALUATION_DATA}",
        )


def check_demonstrations(
    source: str, tasks: Sequence[Task], data: DataInfo | None, *, allow_evaluation_only: bool = False
) -> None:
    """Refuses to imitate solutions of evaluation tasks.

    Args:
        source: File of the demonstrations, as the user wrote it.
        tasks: Tasks that they solve, as far as recorded.
        data: Data set of the tasks, or None when it is no longer known.
        allow_evaluation_only: Whether the user allows training on data for evaluation.

    Raises:
        DataError: Tasks are of the split `test`, or their data is for evaluation only.
    """
    if allow_evaluation_only:
        return
    if data is not None and data.evaluation_only:
        raise DataError(
            f"The demonstrations in {source} solve {data.name!r}, which is for evaluation only.",
            remedy="finqa eval scripted --snapshot NAME --split train --run-dir DIR, with the name of other data, then "
            f"finqa sft DIR, or {ALLOW_EVALUATION_DATA}",
        )
    if held_out := [task.id for task in tasks if task.split == "test"]:
        raise DataError(
            f"{len(held_out)} of {len(tasks)} demonstrations in {source} solve questions of the split test: "
            f"{_examples(sorted(set(held_out)))}. Training on them would leak the test questions.",
            remedy=f"demonstrations of another split (finqa eval scripted --split train), or {ALLOW_EVALUATION_DATA}",
        )


def find_overlap(training: Iterable[Task], evaluation: Iterable[Task]) -> Overlap:
    """Returns what two parts of a data set share.

    Clusters that are empty count as none. Questions are pairs of cluster and text, so that they are shared only along
    with their cluster, or where neither side has one.
    """
    held_out = list(evaluation)
    ids = {task.id for task in held_out}
    clusters = {normalize_text(task.cluster) for task in held_out} - {""}
    questions = {_question(task) for task in held_out}
    shared_ids: set[str] = set()
    shared_clusters: set[str] = set()
    shared_questions: set[str] = set()
    for task in training:
        if task.id in ids:
            shared_ids.add(task.id)
        if normalize_text(task.cluster) in clusters:
            shared_clusters.add(task.cluster)
        if _question(task) in questions:
            shared_questions.add(f"{task.cluster}: {task.prompt}" if task.cluster else task.prompt)
    return Overlap(
        ids=tuple(sorted(shared_ids)),
        clusters=tuple(sorted(shared_clusters)),
        questions=tuple(sorted(shared_questions)),
    )


def find_overlap_of_sets(training: Iterable[Task], evaluation: Iterable[Task]) -> Overlap:
    """Returns what two data sets share: clusters, and questions by their text; ids differ between data sets."""
    held_out = list(evaluation)
    clusters = {normalize_text(task.cluster) for task in held_out} - {""}
    texts = {_asked(task) for task in held_out} - {""}
    tasks = list(training)
    return Overlap(
        clusters=tuple(sorted({task.cluster for task in tasks if normalize_text(task.cluster) in clusters})),
        questions=tuple(sorted({task.prompt for task in tasks if _asked(task) in texts})),
    )


def normalize_text(text: str) -> str:
    """Returns lower-case letters and digits, words parted by single spaces: `Acme, Corp.` and `acme_corp` are equal."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def describe(overlap: Overlap, cluster: tuple[str, str] = ("company", "companies")) -> str:
    """`2 companies (a, b), 7 questions (...)`: what is shared, with up to 5 examples each.

    Args:
        overlap: Overlap of two sets of tasks.
        cluster: Word for a cluster, singular and plural.
    """
    parts = [
        (len(overlap.clusters), *cluster, overlap.clusters),
        (len(overlap.questions), "question", "questions", overlap.questions),
        (len(overlap.ids), "task id", "task ids", overlap.ids),
    ]
    return ", ".join(
        f"{count} {one if count == 1 else many} ({_examples(names)})" for count, one, many, names in parts if count
    )


def _question(task: Task) -> tuple[str, str]:
    return normalize_text(task.cluster), normalize_text(task.prompt)


def _asked(task: Task) -> str:
    """Returns the question itself, normalized; nothing when it is too short to be distinguished from others."""
    text = _NAMED_COMPANY.sub("", normalize_text(task.prompt), count=1)
    return text if len(text.split()) >= _FEWEST_WORDS else ""


def _examples(names: Sequence[str]) -> str:
    shown = [" ".join(name.split()) for name in names[:_EXAMPLES]]
    cut = [name if len(name) <= _EXAMPLE_CHARACTERS else f"{name[:_EXAMPLE_CHARACTERS]}..." for name in shown]
    return ", ".join([*cut, *(["..."] if len(names) > _EXAMPLES else [])])
