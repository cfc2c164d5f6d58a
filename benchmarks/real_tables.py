"""Reads tables of others as `finqa data import tables` does, and lists what became of each file.

`python -m benchmarks.real_tables PATH ...` lists files, or those of folders. With `--pages FOLDER --workbook FILE` it
compares the pages R1.htm, R2.htm, ... of an EDGAR filing with the sheets of its Financial_Report.xlsx, in their order:
the pages have numbers as texts with their marks, the workbook has the same numbers as numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections import Counter
from pathlib import Path

from finqa_cli.data.data_problems import Problem
from finqa_cli.data.dataset import Table
from finqa_cli.data.own_tables.assign_companies import build_tables
from finqa_cli.data.own_tables.import_options import ImportOptions
from finqa_cli.data.own_tables.table_sources import find_tables
from finqa_cli.data.table_findings import table_findings


def read(path: Path) -> tuple[list[Table], list[Problem]]:
    """Returns the tables of a file, and the problems of those that cannot be used."""
    found = find_tables(path)
    tables = build_tables(found.tables, found.unread, [], ImportOptions(company="name:company"))
    return list(tables.by_key.values()), [bad.problem for bad in tables.bad]


def describe(path: Path) -> str:
    """Returns name, digest, tables, rows, unusable tables and warnings of a file as a row of a Markdown table."""
    tables, problems = read(path)
    warned = Counter(found.code for found in table_findings(tables))
    said = ", ".join(f"{code} {count}" for code, count in warned.items()) or "-"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    rows = sum(len(table.rows) for table in tables)
    return f"| {path.name} | `{digest}` | {len(tables)} | {rows} | {len(problems)} | {said} |"


def compare(pages: Path, workbook: Path) -> tuple[int, int, list[str]]:
    """Returns how many pages have the shape of their sheet, their equal numbers, and the numbers that differ."""
    equal, different, compared = 0, [], 0
    for number, sheet in enumerate(read(workbook)[0], start=1):
        tables, _ = read(pages / f"R{number}.htm")
        if len(tables) != 1 or len(tables[0].rows) != len(sheet.rows) or len(tables[0].columns) != len(sheet.columns):
            continue  # the page of a note contains the tables of its text, which the sheet does not have
        compared += 1
        for one, other in zip(tables[0].rows, sheet.rows, strict=True):
            for first, second in zip(one[1:], other[1:], strict=True):
                if isinstance(first, int | float) and isinstance(second, int | float) and _close(first, second):
                    equal += 1
                elif isinstance(first, int | float) or isinstance(second, int | float):
                    different.append(f"R{number}, {one[0]}: {first!r}, in the workbook {second!r}")
    return compared, equal, different


def _close(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-9 * max(1.0, abs(second))


def main() -> None:
    """Prints the listing or the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--workbook", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # openpyxl warns of styles
    if given.pages and given.workbook:
        compared, equal, different = compare(given.pages, given.workbook)
        sys.stdout.write("".join(f"{line}\n" for line in different))
        sys.stdout.write(f"{compared} pages, {equal} numbers equal, {len(different)} different\n")
    files = [file for path in given.paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    for file in files:
        if file.is_file():
            sys.stdout.write(describe(file) + "\n")


if __name__ == "__main__":
    main()
