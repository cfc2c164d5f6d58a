"""Gold queries in one canonical, compact style.

They obey the environment's rules: one table, a filter, no `SELECT *`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWriter:
    """Writes queries on one table; with `text` cells it casts `$1,234` and `$(6)` to integers first."""

    table: str
    text: bool = False

    def lookup(self, label: str, year: str) -> str:
        """One cell."""
        return self._select(self._cell(year), label)

    def change(self, label: str, old: str, new: str) -> str:
        """Difference of two years."""
        return self._select(f"{self._cell(new)} - {self._cell(old)}", label)

    def growth(self, label: str, old: str, new: str) -> str:
        """Relative change, as a decimal ratio with four places."""
        previous = self._cell(old)
        return self._select(f"ROUND(({self._cell(new)} - {previous}) * 1.0 / {previous}, 4)", label)

    def ratio(self, numerator: str, denominator: str, year: str) -> str:
        """Quotient of two rows in one year, with four places."""
        parts = [
            f"SUM(CASE WHEN line_item = '{label}' THEN {self._cell(year)} END)" for label in (numerator, denominator)
        ]
        return self._select(f"ROUND({parts[0]} * 1.0 / {parts[1]}, 4)", numerator, denominator)

    def average(self, label: str, years: Sequence[str]) -> str:
        """Mean of one row over years, with two places."""
        total = " + ".join(self._cell(year) for year in years)
        return self._select(f"ROUND(({total}) / {len(years)}.0, 2)", label)

    def total(self, first: str, second: str, year: str) -> str:
        """Sum of two rows in one year."""
        return self._select(f"SUM({self._cell(year)})", first, second)

    def comparison(self, label: str, old: str, new: str) -> str:
        """Whether the later year is higher: Yes or No."""
        return self._select(f"CASE WHEN {self._cell(new)} > {self._cell(old)} THEN 'Yes' ELSE 'No' END", label)

    def several(self, label: str, years: Sequence[str]) -> str:
        """One row in several years as `2022: 1, 2023: 2`."""
        parts = [f"'{', ' if index else ''}{year}: ' || {self._cell(year)}" for index, year in enumerate(years)]
        return self._select(" || ".join(parts), label)

    def _cell(self, year: str) -> str:
        column = f'"{year}"'
        if not self.text:
            return column
        for old, new in (("$", ""), (",", ""), ("(", "-"), (")", "")):
            column = f"REPLACE({column}, '{old}', '{new}')"
        return f"CAST({column} AS INTEGER)"

    def _select(self, expression: str, *labels: str) -> str:
        quoted = [f"'{label}'" for label in labels]
        condition = f"= {quoted[0]}" if len(quoted) == 1 else f"IN ({', '.join(quoted)})"
        return f"SELECT {expression} AS value FROM {self.table} WHERE line_item {condition}"
