"""Prepares question files for training: train, val and test as JSON lines, with nothing in two of them.

Rows of FinQA get these fields. Rows of other environments keep their own, and get `split` and `evaluation_only`.

| field            | what                                                                                       |
| ---------------- | ------------------------------------------------------------------------------------------ |
| `id`             | as in the source                                                                           |
| `input_text`     | text before the table, table, text after it, question                                      |
| `target_answer`  | the truth: `exe_ans`, what the gold program yields, as text (`94`, `0.14464`, `Yes`, `No`) |
| `target_program` | the gold program                                                                           |
| `question`       | the question alone                                                                         |
| `exe_ans`        | the truth as a JSON value: a number, `yes` or `no`                                         |
| `percent`        | the annotator answered in percent: 100 times the truth is the same answer                  |
| `answer_text`    | what the annotator wrote; rounded, at times empty or at another scale: not the truth        |
| `company`, `filename`, `table`, `split`, `evaluation_only` | where it comes from, and what it may be used for |

The truth is `exe_ans` because `answer` differs from it by more than 5 % in about a tenth of the rows.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.dataset import SplitShares, split_of
from finqa_cli.data.finqa.finqa_rows import FinqaRow, input_text, read_finqa_rows
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.split_guard import describe, find_overlap
from finqa_cli.errors import DataError, UsageError
from finqa_cli.types import Task
from finqa_cli.types.splits import SPLITS, cluster_of, page_cluster, split_of_name

SplitBy = Literal["auto", "file", "company", "cluster"]

FILES: Mapping[str, str] = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
"""Split -> file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRow:
    """A row of a question file.

    Attributes:
        id: Unique in its file.
        number: Place of the row in the file, counted from 1.
        cluster: Rows with the same cluster, such as a company, go to one split if rows are split by company.
        company: Empty if the row names none.
        page: Two splits must not share a page.
        question: Empty if the row contains several questions.
        record: Fields to write, without `split` and `evaluation_only`.
    """

    id: str
    number: int
    cluster: str
    company: str
    page: str
    question: str
    record: Mapping[str, Any]


Read = Callable[[Path], Iterable[PreparedRow | Problem]]
"""Yields the rows of a file; raises ProblemError if the file as a whole cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Rows by split, ready to be written.

    Attributes:
        split_by: `file`, `company`, or `cluster` if that was asked for.
        rows: Split -> rows, in the order of the sources; splits without rows are left out.
        read: Number of rows in the sources.
        problems: Malformed rows that were left out.
        shared_companies: Companies in more than one split; only a split by file can have any.
        evaluation_only: Every source is FinQA's test split, or one of them is and the rows were split by company.
    """

    split_by: Literal["file", "company", "cluster"]
    rows: Mapping[str, tuple[PreparedRow, ...]]
    read: int
    problems: tuple[Problem, ...]
    shared_companies: tuple[str, ...]
    evaluation_only: bool

    def files(self) -> dict[str, str]:
        """Returns the text of each file by name. A split without rows has an empty file."""
        return {
            name: "".join(
                json.dumps({**row.record, **self._use(split)}, ensure_ascii=False) + "\n"
                for row in self.rows.get(split, ())
            )
            for split, name in FILES.items()
        }

    def _use(self, split: str) -> dict[str, Any]:
        return {"split": split, "evaluation_only": self.evaluation_only or split == "test"}

    def stats(self) -> dict[str, Any]:
        """Returns counts for the manifest."""
        return {
            "read": self.read,
            "malformed": len(self.problems),
            "splits": {split: len(rows) for split, rows in self.rows.items()},
            "companies": {split: len({row.company for row in rows}) for split, rows in self.rows.items()},
            "companies_in_several_splits": len(self.shared_companies),
        }


def read_finqa(path: Path) -> Iterator[PreparedRow | Problem]:
    """Yields the rows of a FinQA file.

    Raises:
        ProblemError: The file as a whole is missing or unreadable.
    """
    for row in read_finqa_rows(path):
        yield row if isinstance(row, Problem) else _of_finqa(row)


def rows_of_tasks(tasks: Mapping[Path, Sequence[Task]]) -> Read:
    """Returns a reader for the files of an environment, whose rows stay as they are.

    Args:
        tasks: The environment's tasks, by file. A row belongs to the task or cluster whose name it has as `id`, `uid`
            or `table.uid`, or whose name is that of the file and its number, which environments give to rows without
            an id. Any other row is a problem: the environment skips it.
    """

    def read(path: Path) -> Iterator[PreparedRow | Problem]:
        known = {each.cluster: each.cluster for each in tasks[path]} | {each.id: each.cluster for each in tasks[path]}
        for item in read_rows(path):
            if isinstance(item, Problem):
                yield item
                continue
            number, fields = item
            names = (*_identities(fields), f"{path.stem}-{number}")
            name = next((name for name in names if name in known), None)
            if name is None:
                yield Problem(file=str(path), row=number, reason="the environment skips it")
            else:
                cluster = known[name]
                yield PreparedRow(
                    id=name, number=number, cluster=cluster, company=cluster, page=name, question="", record=fields
                )

    return read


def _identities(fields: Mapping[str, object]) -> Iterator[str]:
    table = fields.get("table")
    for value in (fields.get("id"), fields.get("uid"), table.get("uid") if isinstance(table, Mapping) else None):
        if isinstance(value, str | int):
            yield str(value)


def prepare(
    files: Sequence[Path],
    read_file: Read = read_finqa,
    *,
    split_by: SplitBy = "auto",
    seed: int = 0,
    shares: SplitShares | None = None,
    skip_bad: bool = False,
    most: int | None = None,
) -> Preparation:
    """Reads question files and divides their rows.

    A split by company, or by what else the clusters are, assigns each to one split, by its name and the seed only. A
    split by file takes the split from the file name (train, dev or val, test). The published splits share companies,
    but no page.

    Args:
        files: JSON, JSONL or Parquet.
        read_file: `read_finqa`, or `rows_of_tasks` for the files of an environment.
        split_by: `auto`: by file if all file names contain a split and there are at least two splits, else by company.
        seed: Seed of the split by company.
        shares: Shares of the companies by split. Not used if a file is FinQA's test split: all rows become `test`.
        skip_bad: Leave out malformed rows instead of failing.
        most: Number of rows to take from each file, from the first; None: all.

    Raises:
        DataError: A file or row is malformed, or two splits share an id, a page or a question.
        UsageError: `split_by` is `file`, and the name of a file contains no split.
    """
    named = {path: split_of_name(path) for path in files}
    by_file = split_by == "file" or (split_by == "auto" and all(named.values()) and len(set(named.values())) > 1)
    if by_file and not all(named.values()):
        nameless = next(path for path, split in named.items() if not split)
        raise UsageError(f"{nameless} names no split (train, dev, val or test).", remedy="--split-by company")
    evaluation_only = set(named.values()) == {"test"} if by_file else "test" in named.values()
    chosen = SplitShares(train=0.0, dev=0.0, test=1.0) if evaluation_only else shares or SplitShares()
    rows: dict[str, list[PreparedRow]] = {split: [] for split in SPLITS}
    problems: list[Problem] = []
    read = 0
    seen: set[tuple[str, str]] = set()
    for path in files:
        for row in itertools.islice(_read(path, read_file), most):
            read += 1
            if isinstance(row, Problem):
                problems.append(row)
                continue
            split = named[path] if by_file else split_of(row.cluster, seed, chosen)
            if (split, row.id) in seen:
                reason = f"{row.id!r} is in an earlier file too"
                problems.append(Problem(file=str(path), row=row.number, field="id", reason=reason))
                continue
            seen.add((split, row.id))
            rows[split].append(row)
    if problems and not skip_bad:
        other = "--for convfinqa or --for tatqa, for their files" if read == len(problems) else ""
        raise as_data_error(problems, remedy=other or "correct them, or --skip-bad, which skips them")
    if read == len(problems):
        raise DataError(
            f"There is no valid row in {', '.join(map(str, files))}.",
            remedy=f"finqa data check {shlex.quote(str(files[0]))}",
        )
    kept = {split: tuple(part) for split, part in rows.items() if part}
    return Preparation(
        split_by="file" if by_file else "cluster" if split_by == "cluster" else "company",
        rows=kept,
        read=read,
        problems=tuple(problems),
        shared_companies=_checked_apart(kept),
        evaluation_only=evaluation_only,
    )


def _read(path: Path, read_file: Read) -> Iterator[PreparedRow | Problem]:
    try:
        yield from read_file(path)
    except ProblemError as error:
        remedy = "correct it, or name another file" if path.exists() else "finqa data fetch finqa"
        raise as_data_error([error.problem], remedy=remedy) from error


def _checked_apart(rows: Mapping[str, Sequence[PreparedRow]]) -> tuple[str, ...]:
    """Returns the companies that are in several splits, after checking that the splits share nothing else.

    Raises:
        DataError: An id, a page or a question of a page is in two splits.
    """
    companies: set[str] = set()
    splits = list(rows)
    for place, split in enumerate(splits):
        for other in splits[place + 1 :]:
            overlap = find_overlap(_tasks(rows[split]), _tasks(rows[other]))
            if overlap:
                apart = "--split-by company of the train and dev files"
                # rows with the same id also collide after a split by company
                apart += " with --skip-bad, which keeps the first row of each id" if overlap.ids else ""
                raise DataError(
                    f"The splits {split} and {other} share {describe(overlap, ('page', 'pages'))}.",
                    remedy=f"leave one of the files out, or {apart}",
                )
            companies |= {row.company for row in rows[split]} & {row.company for row in rows[other]} - {""}
    return tuple(sorted(companies))


def _tasks(rows: Iterable[PreparedRow]) -> list[Task]:
    """Returns rows as tasks for `find_overlap`, with their page as the cluster."""
    return [Task(id=row.id, prompt=row.question, split="", cluster=row.page) for row in rows]


def _of_finqa(row: FinqaRow) -> PreparedRow:
    text = input_text(row)
    record = {
        "id": row.id,
        "input_text": text,
        "target_answer": row.truth,
        "target_program": row.program,
        "question": row.question,
        "exe_ans": row.exe_ans,
        "percent": row.is_percent,
        "answer_text": row.answer,
        "company": row.company,
        "filename": row.filename,
        "table": [list(cells) for cells in row.table],
    }
    return PreparedRow(
        id=row.id,
        number=row.number,
        cluster=cluster_of(row.company, row.id, text, row.question),
        company=row.company,
        page=row.filename or page_cluster(text, row.question),
        question=row.question,
        record=record,
    )
