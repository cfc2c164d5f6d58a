"""Sources of preference pairs: the graded attempts of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.evaluation.candidates import CANDIDATES, LOG, SCORES, Record, joined, place
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import SCHEMA_VERSION, read_jsonl
from finqa_cli.runs.trajectory_records import record_order
from finqa_cli.statistics import MALFORMED, Outcome, read_outcome

_APART = "make pairs of each by itself: finqa prefs RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of attempts.

    Attributes:
        path: Path that the user gave.
        run: Folder of the run.
        files: Files with the attempts.
        data: Name and digest of the questions' data, as far as they were recorded.
        settings: Settings of the run; empty if they are missing.
        finished: The run was completed.
    """

    path: Path
    run: Path
    files: tuple[Path, ...]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A graded attempt: its record, its outcome, and the folder of its run."""

    record: Record
    outcome: Outcome
    run: Path


def open_source(path: Path) -> Source:
    """Find the files of a run folder, or of a single candidates.jsonl or trajectories.jsonl.

    Raises:
        DataError: A file with attempts is missing.
    """
    run = path if path.is_dir() else path.parent
    facts = read_document(run / "run.json")
    if path.is_dir():
        sampled = (run / CANDIDATES).is_file() and (run / SCORES).is_file()
        files = (run / CANDIDATES, run / SCORES) if sampled else (run / LOG,)
    else:
        files = (path, run / SCORES) if path.name == CANDIDATES else (path,)
    if missing := [file for file in files if not file.is_file()]:
        raise DataError(f"There are no attempts at {path}: {missing[0]} is missing.", remedy="finqa sample TARGET")
    recorded = read_document(run / "report.json").get("data")
    digest = facts.get("data digest") or facts.get("snapshot digest")
    data = recorded if isinstance(recorded, dict) else {"digest": digest} if digest else {}
    finished = facts.get("status", "completed") == "completed"
    settings = read_document(run / "settings.json")
    return Source(path=path, run=run, files=files, data=data, settings=settings, finished=finished)


def check_alike(sources: Sequence[Source]) -> None:
    """Refuse runs with different data, environments or rewards, because their rewards cannot be compared.

    Raises:
        DataError: Two runs differ; the message states the difference.
    """
    first = sources[0]
    for other in sources[1:]:
        digests = first.data.get("digest"), other.data.get("digest")
        if all(digests) and digests[0] != digests[1]:
            raise DataError(
                f"{first.path} and {other.path} are over different data ({digests[0]}, {digests[1]}).", remedy=_APART
            )
        for section in ("environment", "reward"):
            theirs = first.settings.get(section), other.settings.get(section)
            if all(theirs) and theirs[0] != theirs[1]:
                raise DataError(
                    f"{first.path} and {other.path} were judged differently: {section} {json.dumps(theirs[0])} and "
                    f"{json.dumps(theirs[1])}.",
                    remedy=_APART,
                )


def read_attempts(source: Source) -> list[Judged]:
    """Return the graded attempts of a run, in `record_order`.

    Evaluations during a training run are left out, because they use held-out questions.

    Raises:
        DataError: A row is malformed or of another file version; the message names file and row.
    """
    trained = read_document(source.run / "run.json").get("command") == "train"
    attempts: list[Judged] = []
    for row, found in enumerate(_rows(source), start=1):
        try:
            for record in found():
                if not (trained and record.get("phase") != "train"):
                    outcome = read_outcome(record)
                    if outcome.correct is not None:
                        record_order(record), place(record)
                        attempts.append(Judged(record=record, outcome=outcome, run=source.run))
        except MALFORMED as error:
            raise DataError(
                f"{source.files[0]}, row {row}: not an attempt in the format of finqa ({error!r})."
            ) from error
    return sorted(attempts, key=lambda judged: record_order(judged.record))


class _Row:
    """One row of a source. Calling it yields the records of the row, which may fail."""

    def __init__(self, *lines: Record) -> None:
        self._lines = lines

    def __call__(self) -> Iterator[Record]:
        return joined(*self._lines) if len(self._lines) > 1 else iter(self._lines)


def _rows(source: Source) -> Iterator[_Row]:
    columns = [list(_lines(file)) for file in source.files]
    if len({len(column) for column in columns}) > 1:
        counts = " and ".join(f"{file.name} {len(column)}" for file, column in zip(source.files, columns, strict=True))
        raise DataError(
            f"The files of {source.run} do not belong together: {counts} questions.",
            remedy=f"finqa sample --resume {source.run}",
        )
    return (_Row(*lines) for lines in zip(*columns, strict=True))


def _lines(path: Path) -> Iterator[Record]:
    for row, record in enumerate(read_jsonl(path), start=1):
        if (version := record.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
            raise DataError(
                f"{path}, row {row}: written in file version {version!r}; this finqa reads {SCHEMA_VERSION}.",
                remedy="finqa sample TARGET",
            )
        yield record
