"""Which row executes which remedy of the source: `executed.txt`, one line a remedy and row.

A row holds the file against what it finds, so it cannot say too much or too little. After a change of rows or remedies:

    RECORD_REMEDIES=1 python -m pytest tests/remedies
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).with_name("executed.txt")
RECORD = "RECORD_REMEDIES"


def read() -> dict[str, frozenset[str]]:
    """Return the names of the places that each row executes."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else ():
        site, _, row = line.partition("\t")
        found[row].add(site)
    return {row: frozenset(sites) for row, sites in found.items()}


def executed() -> dict[str, list[str]]:
    """Return the rows that execute each place."""
    found: dict[str, list[str]] = defaultdict(list)
    for row, sites in read().items():
        for site in sites:
            found[site].append(row)
    return dict(found)


def write(seen: Mapping[str, Iterable[str]], rows: Iterable[str]) -> None:
    """Put what rows executed in place of what the file says about them, and leave out rows that are no more."""
    known = {**read(), **seen}
    lines = sorted(f"{site}\t{row}" for row in rows for site in known.get(row, ()))
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
