"""Checks a data folder, a FinQA file or any question file: what is in it, what is odd, and what is wrong."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from finqa_cli.data.data_manifest import MANIFEST_FILE, as_text, manifest, write_files
from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.dataset import DataSet
from finqa_cli.data.finqa.check_finqa import FinqaFacts
from finqa_cli.data.finqa.finqa_rows import LICENCE, SOURCE, is_finqa
from finqa_cli.data.import_advice import advise_import
from finqa_cli.data.openenv_layout.layout_reader import about_file, scan_layout
from finqa_cli.data.own_tables.tables_import import reads_as_questions
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.question_files.row_profile import Finding, Schema, count_values, finding, repeated_questions, sizes
from finqa_cli.data.split_guard import find_overlap
from finqa_cli.data.table_findings import FINDINGS, table_findings
from finqa_cli.data.worded_answers import ODD_ANSWERS, WORDED_ANSWERS, is_odd, is_worded
from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo, Task
from finqa_cli.types.splits import split_of_name


def layout_facts(folder: Path) -> tuple[DataSet, tuple[Problem, ...], dict[str, Any], tuple[Finding, ...]]:
    """Returns the good part of a data folder, the problems of the rest, statistics and findings.

    Raises:
        DataError: A file that everything depends on is missing or unreadable.
    """
    reading = scan_layout(folder)
    dataset = reading.dataset
    statistics = {
        "rows": len(dataset.questions) + sum(problem.row > 0 for problem in reading.problems),
        "companies": len(dataset.companies()),
        "tables": len(dataset.tables),
        "cells": sum(len(table.rows) * len(table.columns) for table in dataset.tables),
        "questions": len(dataset.questions),
        "splits": dataset.split_counts(),
        "question_types": count_values(question.type or "unnamed" for question in dataset.questions),
        "multi_table_questions": sum(len(question.table_names) > 1 for question in dataset.questions),
        "prompt_characters": sizes(len(question.user_query) for question in dataset.questions),
    }
    return dataset, reading.problems, statistics, tuple(_layout_findings(dataset))


def _layout_findings(dataset: DataSet) -> list[Finding]:
    tables = table_findings(dataset.tables)
    asked = [(question.id, question.company, question.user_query) for question in dataset.questions]
    splits: dict[str, set[str]] = {}
    for question in dataset.questions:
        splits.setdefault(question.company, set()).add(question.split)
    crossing = [f"{company}: {', '.join(sorted(names))}" for company, names in splits.items() if len(names) > 1]
    repeats = [", ".join(ids) for ids in repeated_questions(asked)]
    empty = [f"{table.company}/{table.name}" for table in dataset.tables if not table.columns]
    worded = [question for question in dataset.questions if is_worded(question.answer)]
    odd = [question for question in dataset.questions if is_odd(question.answer) and not is_worded(question.answer)]
    return [
        *finding("empty_table", "tables are empty: they are listed, but cannot be queried", empty),
        *(
            each
            for code, text in FINDINGS.items()
            for each in finding(code, text, [str(one) for one in tables if one.code == code])
        ),
        *finding("worded_answer", WORDED_ANSWERS, [f"{question.id}: {question.answer!r}" for question in worded]),
        *finding("odd_answer", ODD_ANSWERS, [f"{question.id}: {question.answer!r}" for question in odd]),
        *finding("repeated_question", "questions about a company occur more than once", repeats),
        *finding(
            "company_in_splits", "companies are in more than one split, so training on this data is refused", crossing
        ),
    ]


Kind = Literal["layout", "finqa", "questions", "tasks"]
_PROMPTS = ("input_text", "user_query", "question", "prompt", "text")
_IDS = ("id", "question_id", "task_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of a check.

    Attributes:
        kind: `layout`: a data folder; `finqa`: original FinQA; `questions`: other question rows; `tasks`: data that
            only an environment can read.
        statistics: Counts and distributions. `rows` counts good and bad rows; data of kind `tasks` has no `rows`.
        schema: One entry per column of the questions: name, types, missing.
        findings: Oddities that are no errors.
        problems: Malformed files and rows; with an environment, its refusal.
        environment: Name of the environment that read the data; empty if none did.
        remedy: Remedy in the environment's error, if it refused the data.
    """

    path: Path
    kind: Kind
    statistics: Mapping[str, Any]
    schema: Sequence[Mapping[str, Any]]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    source: str = "unknown"
    licence: str = "unknown"
    evaluation_only: bool = False
    environment: str = ""
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "ok": not self.problems,
            "statistics": dict(self.statistics),
            "schema": [dict(column) for column in self.schema],
            "findings": [one.document() for one in self.findings],
            "problems": [one.document() for one in self.problems],
            "source": self.source,
            "licence": self.licence,
            "evaluation_only": self.evaluation_only,
            **({"environment": self.environment, "remedy": self.remedy or None} if self.environment else {}),
        }


def report_tasks(
    path: Path,
    environment: str,
    tasks: Mapping[str, Sequence[Task]],
    info: DataInfo,
    *,
    trained: Sequence[Task] = (),
    other: Path | None = None,
) -> CheckReport:
    """Returns the report on data that an environment accepts.

    Its findings are malformed rows that the environment leaves out, general oddities, and overlap with tasks that are
    used for training (see `split_guard`).

    Args:
        path: The data.
        environment: Name of the environment.
        tasks: The environment's tasks of this data, by split.
        info: What the environment reports about the data.
        trained: Tasks of other data that is used for training.
        other: Path of that other data.
    """
    every = [task for part in tasks.values() for task in part]
    statistics = {
        "tasks": len(every),
        "splits": {split: len(part) for split, part in tasks.items()},
        "clusters": len({task.cluster for task in every}),
        "question_types": count_values(task.kind or "unnamed" for task in every),
    }
    general = _general(path)
    findings = finding("left_out", "rows are malformed", [str(problem) for problem in general.problems])
    shared = find_overlap(trained, every)
    for code, text, found in (
        ("shared_cluster", "companies are also in the training data", shared.clusters),
        ("shared_question", "questions about the same company are also in the training data", shared.questions),
        ("shared_id", "ids are also in the training data", shared.ids),
    ):
        findings += finding(code, f"{text}, in {other}", found)
    return replace(
        general,
        statistics={**general.statistics, **statistics},
        findings=(*general.findings, *findings),
        problems=(),
        evaluation_only=info.evaluation_only,
        environment=environment,
    )


def report_refusal(path: Path, environment: str, refusal: DataError) -> CheckReport:
    """Returns the report on data that an environment refuses."""
    problem = Problem(file=str(path), reason=f"environment {environment} refuses it: {refusal.message.splitlines()[0]}")
    return replace(_general(path), problems=(problem,), environment=environment, remedy=refusal.remedy)


def _general(path: Path) -> CheckReport:
    """Returns the report without an environment. It is empty for files that only an environment can read."""
    try:
        return check_path(path)
    except DataError:
        return CheckReport(path=path, kind="tasks", statistics={}, schema=(), findings=(), problems=())


def check_path(path: Path, *, most: int | None = None) -> CheckReport:
    """Checks the data at a path.

    Args:
        path: A data folder or a question file.
        most: Number of rows of a file to check, from the first; None: all. A folder is always checked completely.

    Raises:
        DataError: The data is missing, unreadable or of an unknown kind.
    """
    try:
        return _check_folder(path) if path.is_dir() else _check_file(path, most)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy=advise_import(path)) from error


def _check_folder(path: Path) -> CheckReport:
    dataset, problems, statistics, findings = layout_facts(path)
    schema = Schema()
    for question in dataset.questions:
        schema.add({name: getattr(question, name) for name in question.__dataclass_fields__})
    return CheckReport(
        path=path,
        kind="layout",
        statistics=statistics,
        schema=schema.document(),
        findings=findings,
        problems=problems,
        source=dataset.source,
        licence=dataset.licence,
        evaluation_only=dataset.evaluation_only,
    )


@dataclass(slots=True)
class _Rows:
    schema: Schema = field(default_factory=Schema)
    problems: list[Problem] = field(default_factory=list)
    rows: list[tuple[int, dict[str, object]]] = field(default_factory=list)


def _check_file(path: Path, most: int | None) -> CheckReport:
    read = _Rows()
    finqa = FinqaFacts(str(path))
    for item in itertools.islice(read_rows(path), most):
        if isinstance(item, Problem):
            read.problems.append(item)
            continue
        read.schema.add(item[1])
        if is_finqa(item[1]) or finqa.rows:
            finqa.add(*item)
        else:
            read.rows.append(item)
    if finqa.rows:
        for item in read.rows:
            finqa.add(*item)
        problems = sorted([*read.problems, *finqa.problems], key=lambda problem: problem.row)
        return CheckReport(
            path=path,
            kind="finqa",
            statistics={"rows": finqa.rows + len(read.problems), **finqa.statistics()},
            schema=read.schema.document(),
            findings=tuple(finqa.findings()),
            problems=tuple(problems),
            source=SOURCE,
            licence=LICENCE,
            evaluation_only=split_of_name(path) == "test",
        )
    return _check_questions(path, read)


def _check_questions(path: Path, read: _Rows) -> CheckReport:
    """Checks a file of plain question rows, as `finqa data prepare` and rLLM-FinQA write them."""
    names = [column["column"] for column in read.schema.document()]
    prompt = next((name for name in _PROMPTS if name in names), None)
    identity = next((name for name in _IDS if name in names), None)
    if not read.rows and not read.problems:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    if read.rows and prompt is None:
        found = ", ".join(names)
        reason = f"is not a question file: it has none of the columns {', '.join(_PROMPTS)}; it has: {found}"
        raise ProblemError(Problem(file=str(path), reason=reason))
    problems = list(read.problems)
    seen: set[str] = set()
    questions: list[tuple[str, str, str]] = []
    for number, fields in read.rows:
        text = fields.get(prompt or "")
        key = str(fields.get(identity or "", number))
        if not isinstance(text, str) or not text.strip():
            problems.append(Problem(file=str(path), row=number, field=prompt or "", reason="must not be empty"))
        elif key in seen:
            problems.append(Problem(file=str(path), row=number, field=identity or "", reason=f"{key!r} occurs twice"))
        else:
            seen.add(key)
            questions.append((key, str(fields.get("company") or ""), text))
    repeats = [", ".join(ids) for ids in repeated_questions(questions)]
    about = about_file(path)
    return CheckReport(
        path=path,
        kind="questions",
        statistics={
            "rows": len(read.rows) + len(read.problems),
            "companies": len({company for _, company, _ in questions if company}),
            "prompt_characters": sizes(len(text) for _, _, text in questions),
        },
        schema=read.schema.document(),
        findings=tuple(finding("repeated_question", "questions occur more than once", repeats)),
        problems=tuple(sorted(problems, key=lambda problem: problem.row)),
        source=about.source or "unknown",
        licence=about.licence or "unknown",
        evaluation_only=split_of_name(path) == "test"
        or about.evaluation_only is True
        or any(fields.get("evaluation_only") is True for _, fields in read.rows),
    )


_SHOWN = 20
_REPORT = "check_report"


def summary(report: CheckReport) -> str:
    """Returns counts, findings and the first problems, for a terminal."""
    return "\n".join([*_summary(report)])


def write_report(report: CheckReport, folder: Path, *, timestamp: str) -> None:
    """Writes `check_report.json`, `check_report.md` and `manifest.json`.

    Raises:
        StorageError: One of them is there already, or writing failed.
    """
    document = manifest(
        "data check",
        timestamp=timestamp,
        config={"path": str(report.path), "kind": report.kind},
        stats=report.statistics,
        inputs=[report.path],
        source=report.source,
        licence=report.licence,
        evaluation_only=report.evaluation_only,
    )
    files = {
        f"{_REPORT}.json": as_text(report.document()),
        f"{_REPORT}.md": markdown(report),
        MANIFEST_FILE: as_text(document),
    }
    write_files(folder, files)


def markdown(report: CheckReport) -> str:
    """Returns the whole report as a Markdown document."""
    parts = [f"# Check of {report.path}", _facts(report), "## Statistics"]
    parts += ["\n".join(f"- {_label(name)}: {_value(value)}" for name, value in report.statistics.items())]
    parts += ["## Columns", "\n".join(_columns(report)), "## Findings"]
    parts += ["\n".join(_finding_lines(report)) or "None.", "## Problems"]
    parts += ["\n".join(f"- {_escaped(str(problem))}" for problem in report.problems) or "None."]
    return "\n\n".join(parts) + "\n"


def _summary(report: CheckReport) -> Iterator[str]:
    yield f"{report.path}: {_facts(report)}"
    width = max(map(len, report.statistics), default=0)
    for name, value in report.statistics.items():
        yield f"  {_label(name):<{width}}  {_value(value)}"
    for one in report.findings:
        yield f"warning: {one.text}: {one.count}, for example {_cut(one.examples[0])}"
    yield from (" ".join(str(problem).split()) for problem in report.problems[:_SHOWN])
    if len(report.problems) > _SHOWN:
        yield f"... and {len(report.problems) - _SHOWN} more; --json lists all"
    count, warnings = len(report.problems), len(report.findings)
    found = f"No errors, but {warnings} warning{'s' * (warnings != 1)}" if warnings else "No problems found"
    if count:
        yield f"{count} problem{'s' * (count != 1)}."
    elif report.environment:
        yield f"{found}: environment {report.environment} can use this data."
    elif report.kind == "layout":
        yield f"{found}."
    else:
        prepared = any(column["column"] == "input_text" for column in report.schema)
        reader = "finqa-text" if report.kind == "finqa" or prepared else "ENVIRONMENT"
        path = shlex.quote(str(report.path))
        yield f"{found} in the rows. To check them for an environment: finqa data check {path} --for {reader}"
        if reader == "ENVIRONMENT" and reads_as_questions(report.path):
            yield f"For questions about tables: finqa data import tables SOURCE --questions {path} --out DIR"


def _facts(report: CheckReport) -> str:
    use = "for evaluation only" if report.evaluation_only else "can be used for training"
    return f"{report.kind}, source {report.source}, licence {report.licence}, {use}"


def _columns(report: CheckReport) -> Iterator[str]:
    yield "| column | types | missing or empty |"
    yield "| --- | --- | --- |"
    for column in report.schema:
        yield f"| {_escaped(column['column'])} | {_value(column['types'])} | {column['missing']} |"


def _finding_lines(report: CheckReport) -> Iterator[str]:
    for one in report.findings:
        yield f"- {one.text}: {one.count} (`{one.code}`)"
        yield from (f"  - {_escaped(_cut(example))}" for example in one.examples)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."


def _escaped(text: str) -> str:
    return _cut(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
