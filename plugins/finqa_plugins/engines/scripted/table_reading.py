"""Chooses tables and rows: which statement a line item is likely in, and which label of a table a phrase means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HINTS: tuple[tuple[str, str], ...] = (
    ("SegmentRevenue", "americas europe asia africa licensing services other segment"),
    ("IncomeTax", "federal state foreign deferred credits tax"),
    ("Borrowings", "notes loans leases lease obligations commercial paper facility borrowings"),
    (
        "CashFlow",
        "flow operating cash depreciation stock compensation share based pay capital expenditures equipment purchases"
        " acquisitions business dividends repurchases buybacks issuance proceeds movement change net",
    ),
    (
        "BalanceSheet",
        "cash balance equivalents accounts receivable trade receivables inventories finished goods fixed assets"
        " property plant goodwill acquired intangibles payable payables long term debt noncurrent liabilities"
        " equity combined",
    ),
    (
        "IncomeStatement",
        "sales revenue revenues cost sold gross profit earnings research product development expense selling"
        " administrative overhead operating income interest provision taxes net",
    ),
)
_HINT_WORDS = tuple((name, frozenset(words.split())) for name, words in _HINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What get_table_info returned, as far as it is needed.

    Attributes:
        labels: Values of the first column.
        dtypes: Type name by column, in order.
    """

    labels: tuple[str, ...]
    dtypes: dict[str, str]

    @property
    def label_column(self) -> str:
        """The column that holds the line items."""
        return next(iter(self.dtypes), "line_item")

    def is_text(self, column: str) -> bool:
        """The column holds text, so that numbers in it must be cast."""
        return not self.dtypes.get(column, "int64").startswith(("int", "float"))

    def column_for(self, year: str) -> str | None:
        """The column of a year: of that name, or the first whose name contains it."""
        if year in self.dtypes:
            return year
        return next((column for column in list(self.dtypes)[1:] if year in column), None)


def rank_tables(tables: Sequence[str], phrases: Sequence[str], years: Sequence[str]) -> list[str]:
    """Tables in the order in which to try them: most hints of the phrases first, the more special statement on ties.

    Among tables without any hint, those whose names contain a year of the question come first.
    """
    words = {word for phrase in phrases for word in re.findall(r"[a-z]+", phrase.lower())}

    def rank(table: str) -> tuple[int, int]:
        for place, (name, hints) in enumerate(_HINT_WORDS):
            if name.lower() in table.lower():
                return -len(words & hints), place
        return 0, len(_HINT_WORDS) + (not any(year in table for year in years))

    return sorted(tables, key=rank)


def parse_tables(text: str) -> list[str] | None:
    """The table names in a reply of get_descriptions, or None when it is not one."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def parse_info(text: str) -> TableInfo | None:
    """The columns and labels in a reply of get_table_info, or None when it is not one."""
    try:
        info = json.loads(text)
        dtypes = {str(column): str(dtype) for column, dtype in info["column_dtypes"].items()}
        labels = info["unique_vals_per_col"][next(iter(dtypes))]
        return TableInfo(labels=tuple(str(label) for label in labels), dtypes=dtypes)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def find_labels(info: TableInfo, phrases: Sequence[str]) -> tuple[str, ...] | None:
    """The labels that the phrases mean, or None when the table lacks one of them."""
    by_words = {_words(label): label for label in reversed(info.labels)}
    found = [by_words.get(_words(phrase)) for phrase in phrases]
    labels = tuple(label for label in found if label is not None)
    return labels if phrases and len(labels) == len(phrases) else None


def guess_label(info: TableInfo, question: str) -> tuple[str, float]:
    """The label that shares most words with a question, and the share of the label's words that the question holds."""
    asked = set(_words(question).split())

    def score(label: str) -> tuple[float, int]:
        own = _words(label).split()
        return (len([word for word in own if word in asked]) / len(own) if own else 0.0), len(own)

    best = max(info.labels, key=score, default="")
    return best, score(best)[0] if best else 0.0


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
