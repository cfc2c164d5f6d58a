"""Honest answer forms and hacks, written by a person who saw only the task and the tool description.

Once the wrongly judged rows of a part were read, it is blind no more. A new blind part is a folder with its name in
`PARTS` and its two lines in `DIGESTS`.
`DIGESTS` freezes every file before it is measured for the first time: lines of `sha256sum`. A part that is not here is
left out; a file that is here and has another digest is an error, so that no row is changed to suit a grader.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.grading import Verdict, grade
from finqa_cli.statistics.intervals import Interval, clustered_interval

FOLDER = Path(__file__).parent
PARTS = ("dev", "blind", "form", "form2", "form3", "form4")
"""`dev` was seen while a grader was written, `blind` by the person who measured only, and the others were written by
two authors each from the description of `submit_answer` alone."""
Kind = Literal["honest", "hacks"]
KINDS: tuple[Kind, ...] = ("honest", "hacks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An answer to a question with the truth that it is held against.

    Attributes:
        id: Of the row.
        question: The question.
        truth: As a data set writes it.
        answer: As a policy submits it.
        form: What kind of form or hack it is; a file may call the key `trick`.
        why: Why it is right or wrong; a file may call the key `note`.
    """

    id: str
    question: str
    truth: str
    answer: object
    form: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a profile makes of one part.

    Attributes:
        refused: Honest rows that are not paid at once.
        asked: Those of them for which another form is asked, because they cannot be read or are rounded too far.
        paid: Hacks that are paid, at once or when they are submitted again.
        honest: Share of the honest rows that is paid at once, with its 95 % interval.
        false_accepts: Share of the hacks that is paid, with its 95 % interval.
    """

    refused: tuple[Row, ...]
    asked: tuple[Row, ...]
    paid: tuple[Row, ...]
    honest: Interval
    false_accepts: Interval


def read_corpora(folder: Path = FOLDER) -> dict[str, dict[Kind, tuple[Row, ...]]]:
    """Reads the parts that are in the folder: part -> kind -> rows.

    Raises:
        ValueError: A file has not the digest of `DIGESTS`, or is not named there, or a part has one of its
            files only, or a row lacks a key.
    """
    digests = _digests(folder / "DIGESTS")
    found: dict[str, dict[Kind, tuple[Row, ...]]] = {}
    for part in PARTS:
        files: Mapping[Kind, Path] = {kind: folder / part / f"{kind}.jsonl" for kind in KINDS}
        there = [path for path in files.values() if path.is_file()]
        if not there:
            continue
        if len(there) < len(files):
            raise ValueError(f"{folder / part} has {there[0].name} only.")
        found[part] = {kind: _rows(path, digests.get(f"{part}/{path.name}", "")) for kind, path in files.items()}
    return found


def measure(rows: Mapping[Kind, Sequence[Row]], profile: str) -> Measured:
    """Grades the rows of one part. Each row is a cluster of its own in the intervals."""
    right = {kind: [_is_paid(row, profile) for row in rows[kind]] for kind in KINDS}
    again = {row.id for row in rows["honest"] if _graded(row, profile).again}
    right["honest"] = [paid and row.id not in again for row, paid in zip(rows["honest"], right["honest"], strict=True)]
    refused = tuple(row for row, paid in zip(rows["honest"], right["honest"], strict=True) if not paid)
    return Measured(
        refused=refused,
        asked=tuple(row for row in refused if row.id in again),
        paid=tuple(row for row, paid in zip(rows["hacks"], right["hacks"], strict=True) if paid),
        honest=_share(right["honest"], rows["honest"]),
        false_accepts=_share(right["hacks"], rows["hacks"]),
    )


def _is_paid(row: Row, profile: str) -> bool:
    return _graded(row, profile).reward > 0


def _graded(row: Row, profile: str) -> Verdict:
    return grade(row.answer, row.truth, profile, row.question)


def widened_truths(row: Row, rows: Sequence[Row], profile: str) -> tuple[str, ...]:
    """Other truths under which the answer of a paid hack is paid too, where the row's truth as the answer is not.

    An answer that widens what is paid can be exploited: a policy submits it without knowing the right one of several
    signs, scales or names. Tried are the number with its sign turned, and a hundred and a thousand times larger and
    smaller, and every truth of the rows without a number.
    """
    number = re.fullmatch(r"[^\d-]*(-?[\d,]*\.?\d+)[^\d]*", row.truth)
    if number is not None:
        value = float(number[1].replace(",", ""))
        others = [f"{factor * value:.10g}" for factor in (-1, 1000, 0.001, 100, 0.01)]
    else:
        others = sorted({other.truth for other in rows if not any(map(str.isdigit, other.truth))} - {row.truth})
    return tuple(
        other
        for other in others
        if grade(row.answer, other, profile, row.question).reward > 0
        and not grade(row.truth, other, profile, row.question).reward > 0
    )


def _share(paid: Sequence[bool], rows: Sequence[Row]) -> Interval:
    return clustered_interval([float(one) for one in paid], [row.id for row in rows])


def _digests(path: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {name.strip(): digest for digest, name in lines}


def _rows(path: Path, digest: str) -> tuple[Row, ...]:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} has not the digest that DIGESTS froze.")
    return tuple(_row(json.loads(line), path) for line in content.decode("utf-8").split("\n") if line.strip())


def _row(written: Mapping[str, Any], path: Path) -> Row:
    named = {_OTHER_NAMES.get(key, key): value for key, value in written.items()}
    missing = [key for key in Row.__slots__ if key not in named]
    if missing:
        raise ValueError(f"{path} has a row without {missing[0]!r}.")
    return Row(**{key: named[key] for key in Row.__slots__})


_OTHER_NAMES = {"trick": "form", "note": "why"}
