"""Cleans the tables and reads the programs of the original FinQA data (arXiv 2109.00122)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finqa_cli.data.dataset import LINE_ITEM, Cell

_CELL = re.compile(
    r"\$?\s*(?P<open>\()?\s*(?P<sign>-?)\s*\$?\s*(?P<number>\d[\d,]*(?:\.\d+)?|\.\d+)\s*(?(open)\)\s*)(?P<percent>%?)"
    r"(?:\s*\(\s*\$?\s*(?P<again>[\d,.]*)\s*%?\s*\))?"
)
_LONGEST_NUMBER = 80
_INTEGER_DIGITS = 18
"""What a signed 64-bit integer, which is what SQLite has, can hold in any case."""

_STEP = re.compile(r"(?P<operation>[a-z_]+)\((?P<arguments>[^()]*)\)")
_TABLE_OPERATIONS = {
    "table_average": "average",
    "table_sum": "sum",
    "table_max": "lookup",
    "table_min": "lookup",
    "greater": "comparison",
    "subtract": "change",
    "divide": "ratio",
    "add": "sum",
}


def clean_cell(text: str) -> Cell:
    """A number for `$ 2457` or `-0.3 ( 0.3 )`, a tidy text for `6.4% ( 6.4 % )`, None for nothing, else the text.

    The data repeats a negative or a percentage in brackets; brackets that hold another number stay text.
    """
    stripped = text.strip()
    collapsed = " ".join(stripped.split())  # runs of blanks would cost the pattern time without bound
    match = _CELL.fullmatch(collapsed) if len(collapsed) <= _LONGEST_NUMBER else None
    if not match:
        return stripped or None
    number = match["number"].replace(",", "")
    again = (match["again"] or "").replace(",", "")
    if again and again != number:
        return stripped
    negative = "-" if match["sign"] or match["open"] else ""
    if match["percent"]:
        return f"{negative}{number}%"
    return int(negative + number) if number.isdigit() and len(number) <= _INTEGER_DIGITS else float(negative + number)


def safe_columns(header: Sequence[str]) -> tuple[str, ...]:
    """Unique names of lower-case letters, digits and `_`; the first is `line_item`, a blank one `column_<place>`."""
    names, taken = [LINE_ITEM], {LINE_ITEM}
    for place, text in enumerate(header[1:], start=2):
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or f"column_{place}"
        name, copy = plain, 2
        while name in taken:
            name, copy = f"{plain}_{copy}", copy + 1
        names.append(name)
        taken.add(name)
    return tuple(names)


def safe_name(text: str) -> str:
    """A lower-case name that SQL takes unquoted and that is a plain file name."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"c_{plain}"


def operations(program: str) -> list[str]:
    """The operation of each step of a program, in order."""
    return [match["operation"] for match in _STEP.finditer(program)]


def question_type(program: str) -> str:
    """The question type that a program suggests; empty for longer calculations."""
    names = operations(program)
    if names in (["subtract", "divide"], ["subtract", "divide", "multiply"]):
        return "growth_rate"
    if names in (["divide"], ["divide", "multiply"]):
        return "ratio"
    if len(names) > 1 and set(names[:-1]) == {"add"}:
        return "average" if names[-1] == "divide" else "sum" if names[-1] == "add" else ""
    return _TABLE_OPERATIONS.get(names[0], "") if len(names) == 1 else ""


def uses_only(program: str, rows: Sequence[Sequence[object]]) -> bool:
    """Whether each number of a program, constants aside, stands in a table (signs are ignored)."""
    there = {value for row in rows for cell in row if (value := _magnitude(str(cell))) is not None}
    steps = list(_STEP.finditer(program))
    for match in steps:
        if match["operation"].startswith("table_"):
            continue
        for argument in match["arguments"].split(","):
            literal = argument.strip()
            if not literal.startswith(("#", "const_")) and _magnitude(literal) not in there:
                return False
    return bool(steps)


def _magnitude(text: str) -> float | None:
    try:
        return abs(float(text.strip().rstrip("%").replace(",", "")))
    except ValueError:
        return None
