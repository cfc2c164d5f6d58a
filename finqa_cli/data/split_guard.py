"""The split guard: keeps evaluation data out of training.

There are two rules. Data that is marked for evaluation only (`evaluation_only`) is never trained on. Training data and
evaluation data share nothing: no cluster (for FinQA the company), no question and, within a data set, no id.

Texts are compared without case, punctuation and spacing. Within a data set, a question is the pair of its cluster and
its text, because "What was revenue in 2023?" about two companies is two tasks with two truths. A shared pair implies a
shared cluster, so pairs only show which questions are shared. Tasks without a cluster are compared by text only.

Data sets write the name of a company in different ways (`alphabet`, `GOOGL`). Between two data sets, equal texts are
therefore the same question. The company at the beginning of prompts of OpenEnv and rLLM is ignored, and texts of fewer
than 6 words are too short to be compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo, Task

ALLOW_EVALUATION_DATA = "--allow-evaluation-data"
ALLOW_OVERLAP = "--allow-overlap"
_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 100
_FEWEST_WORDS = 6
_NAMED_COMPANY = re.compile(r"\Afor company .+? here is the question ")
"""Beginning of prompts of OpenEnv and rLLM, normalized."""


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
    division: Callable[[], str] = lambda: "split the train and dev files by company",
    cluster: tuple[str, str] = ("company", "companies"),
) -> None:
    """Checks that tasks may be used for training.

    Args:
        data: The data set of the tasks.
        training: The tasks to train on.
        evaluation: The tasks to evaluate on.
        allow_evaluation_only: Whether the user allows training on data for evaluation.
        allow_overlap: Whether the user allows the two sets to overlap.
        division: Returns the remedy for an overlap: how to divide the data. Only called if there is one.
        cluster: Word for a cluster of the data, singular and plural.

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
            f"{describe(overlap, cluster)}. The evaluation would measure memorization.",
            remedy=f"{division()}, or {ALLOW_OVERLAP}",
        )


def check_other_data(training: Sequence[Task], name: str, evaluation: Sequence[Task]) -> None:
    """Checks that training tasks share nothing with another data set, which is for evaluation only.

    Args:
        training: The tasks to train on.
        name: Name of the other data set's snapshot.
        evaluation: All tasks of the other data set.

    Raises:
        DataError: The two share companies or questions; the message has counts and examples.
    """
    if overlap := find_overlap_of_sets(training, evaluation):
        raise DataError(
            f"The training data overlaps with the snapshot {name!r}, which is for evaluation only: "
            f"{describe(overlap)}. An evaluation on it would measure memorization.",
            remedy=f"train on other data, or pass {ALLOW_OVERLAP}",
        )


def check_permission(data: DataInfo, *, allow_evaluation_only: bool = False) -> None:
    """Checks that data may be used for training.

    Raises:
        DataError: The data is for evaluation only, and the user has not allowed training on it.
    """
    if data.evaluation_only and not allow_evaluation_only:
        raise DataError(
            f"{data.name!r} cannot be used for training: it is marked for evaluation only.",
            remedy=f"train on other data (finqa snapshot list), or pass {ALLOW_EVALUATION_DATA}",
        )


def check_demonstrations(
    source: str, tasks: Sequence[Task], data: DataInfo | None, *, allow_evaluation_only: bool = False
) -> None:
    """Checks that demonstrations do not solve evaluation tasks.

    Args:
        source: File of the demonstrations, as the user wrote it.
        tasks: Tasks that the demonstrations solve, as far as they are recorded.
        data: Data set of the tasks, or None if it is no longer known.
        allow_evaluation_only: Whether the user allows training on data for evaluation.

    Raises:
        DataError: A task is of the split `test`, or the data is for evaluation only.
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

    Empty clusters are not shared. Questions are pairs of cluster and text, so they are shared only together with their
    cluster, or if neither side has a cluster.
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
    """Returns the words of a text in lower case with single spaces: `Acme, Corp.` and `acme_corp` become equal."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def describe(overlap: Overlap, cluster: tuple[str, str] = ("company", "companies")) -> str:
    """Returns an overlap as text with up to 5 examples each: `2 companies (a, b), 7 questions (...)`.

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
    """Returns the normalized question without its company; "" if it is too short to be compared."""
    text = _NAMED_COMPANY.sub("", normalize_text(task.prompt), count=1)
    return text if len(text.split()) >= _FEWEST_WORDS else ""


def _examples(names: Sequence[str]) -> str:
    shown = [" ".join(name.split()) for name in names[:_EXAMPLES]]
    cut = [name if len(name) <= _EXAMPLE_CHARACTERS else f"{name[:_EXAMPLE_CHARACTERS]}..." for name in shown]
    return ", ".join([*cut, *(["..."] if len(names) > _EXAMPLES else [])])
