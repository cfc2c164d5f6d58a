"""Profile of rows: their columns, sizes and repetitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finqa_cli.data.split_guard import normalize_text

_PERCENTILES = (50, 95, 99)
_EXAMPLES = 5


@dataclass(slots=True)
class _Column:
    types: Counter[str] = field(default_factory=Counter)
    filled: int = 0


class Schema:
    """Collects the columns of rows. The fields of an object `qa` are separate columns, such as `qa.question`."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[str, _Column] = {}

    def add(self, fields: Mapping[str, object]) -> None:
        """Adds one row."""
        self.rows += 1
        for name, value in _flat(fields):
            column = self._columns.setdefault(name, _Column())
            if value is not None and value not in ("", [], {}):
                column.filled += 1
                column.types[_type_name(value)] += 1

    def document(self) -> list[dict[str, Any]]:
        """Returns one entry per column: name, counts of types, and number of rows in which it is missing or empty."""
        return [
            {"column": name, "types": dict(column.types.most_common()), "missing": self.rows - column.filled}
            for name, column in self._columns.items()
        ]


def sizes(lengths: Iterable[int]) -> dict[str, int]:
    """Returns nearest-rank percentiles and the maximum of lengths, such as `p95`; {} if there are no lengths."""
    ordered = sorted(lengths)
    if not ordered:
        return {}
    ranks = {f"p{share}": ordered[-(-len(ordered) * share // 100) - 1] for share in _PERCENTILES}
    return {**ranks, "max": ordered[-1]}


def repeated_questions(questions: Iterable[tuple[str, str, str]]) -> list[list[str]]:
    """Returns groups of ids of the same question about the same page or company, from (id, page or company, text)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for identity, about, text in questions:
        groups.setdefault((about, normalize_text(text)), []).append(identity)
    return [ids for ids in groups.values() if len(ids) > 1]


def count_values(values: Iterable[str]) -> dict[str, int]:
    """Counts each value, most frequent first, ties by name."""
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An oddity that is not an error.

    Attributes:
        code: Stable name for scripts.
        count: Number of rows, cells or questions with it.
        text: What it is, in the plural, because any count can follow it.
        examples: Up to 5 places where it occurs.
    """

    code: str
    count: int
    text: str
    examples: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return {"code": self.code, "count": self.count, "text": self.text, "examples": list(self.examples)}


def finding(code: str, text: str, examples: Sequence[str]) -> list[Finding]:
    """Returns a list with one finding that counts the examples, or [] if there are none."""
    return [Finding(code=code, count=len(examples), text=text, examples=tuple(examples[:_EXAMPLES]))] * bool(examples)


def _flat(fields: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in fields.items():
        if isinstance(value, dict) and not prefix and name == "qa":
            yield from _flat(value, "qa.")
        else:
            yield f"{prefix}{name}", value


def _type_name(value: object) -> str:
    names = {str: "text", bool: "bool", int: "integer", float: "number", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)
