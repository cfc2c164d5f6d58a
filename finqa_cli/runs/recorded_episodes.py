"""Search in the recorded episodes of a run, by number or id, without reading all of them into memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError, UsageError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.statistics import MALFORMED, Outcome, read_outcome

_NAMED = 5
"""Most episodes that a message names."""

_UNGRADED = re.compile(rb'"reward":\s*null')


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedError:
    """An error that ended episodes.

    Attributes:
        status: Status of the episodes.
        error: The message.
        count: Number of episodes.
    """

    status: str
    error: str
    count: int


def count_errors(run: Path) -> list[RecordedError]:
    """Returns the distinct errors of the episodes that ended in faults, the most frequent ones first.

    Raises:
        DataError: The record of such an episode is damaged; the message names the line.
    """
    file = run / "trajectories.jsonl"
    if not file.is_file():
        return []
    ungraded = read_jsonl(file, only=_UNGRADED)  # parses few lines: files of training runs may have gigabytes
    errors = ((str(each.get("status")), str(each.get("error"))) for each in ungraded if each.get("reward") is None)
    return [RecordedError(status=pair[0], error=pair[1], count=n) for pair, n in Counter(errors).most_common()]


def numbered_episodes(run: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a run's episodes with their numbers from 1, in the order in which they ended.

    Raises:
        DataError: A complete line is damaged; the message names it.
    """
    file = run / "trajectories.jsonl"
    if file.is_file():
        yield from enumerate(read_jsonl(file), start=1)


def select_episodes(
    run: Path, *, failed: bool = False, search: str = ""
) -> Iterator[tuple[int, dict[str, Any], Outcome]]:
    """Yield number, record and outcome of the selected episodes.

    Args:
        run: Folder of the run.
        failed: Only episodes that are wrong or ended in a fault.
        search: Only episodes that contain this text, in upper or lower case; empty: all.

    Raises:
        DataError: A record is malformed; the message names it.
    """
    wanted = search.casefold()
    for number, record in numbered_episodes(run):
        if wanted and wanted not in json.dumps(record, ensure_ascii=False).casefold():
            continue
        outcome = outcome_of(run, number, record)
        if not (failed and outcome.correct):
            yield number, record, outcome


def outcome_of(run: Path, number: int, record: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an episode.

    Raises:
        DataError: The record is malformed; the message names it.
    """
    try:
        return read_outcome(record)
    except MALFORMED as error:
        file = run / "trajectories.jsonl"
        reason = f"{file}, line {number}: not the record of an episode ({error!r})."
        raise DataError(reason, remedy=f"correct or remove that line of {file}") from error


def find_episode(run: Path, reference: str) -> tuple[int, dict[str, Any]]:
    """Return number and record of an episode.

    Args:
        run: Folder of the run.
        reference: Its id, a unique beginning of its id, or its number.

    Raises:
        DataError: There is no such episode, or a line is damaged.
        UsageError: Several ids begin with the reference.
    """
    found: dict[int, dict[str, Any]] = {}
    by_number: tuple[int, dict[str, Any]] | None = None
    count = 0
    for number, record in numbered_episodes(run):
        count = number
        if (name := str(record.get("id"))) == reference:
            return number, record
        if str(number) == reference:
            by_number = number, record
        if name.startswith(reference) and len(found) <= _NAMED:
            found[number] = record
    if by_number is not None:
        return by_number
    if len(found) > 1:
        names = ", ".join(str(record["id"]) for record in list(found.values())[:_NAMED])
        more = ", ..." if len(found) > _NAMED else ""
        raise UsageError(
            f"Several episodes of {run} begin with {reference!r}: {names}{more}.", remedy=f"finqa show {run}"
        )
    if not found:
        raise DataError(f"{run} has no episode {reference!r}; it has {count}.", remedy=f"finqa show {run}")
    return next(iter(found.items()))
