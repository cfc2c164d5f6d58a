"""Invents one company: its name, and statements whose subtotals add up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from finqa_cli.data.dataset import LINE_ITEM, Cell, Table
from finqa_cli.data.generated import vocabulary as words

Series = tuple[int, ...]
_Part = Callable[[float, float], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a company. `values[label]` contains one integer (USD millions) per year of `years`."""

    kind: str
    table_name: str
    years: tuple[str, ...]
    values: Mapping[str, Series]
    concepts: Mapping[str, str]

    def amount(self, label: str, year: str) -> int:
        """Returns the value of a row in one year."""
        return self.values[label][self.years.index(year)]


def invent_name(rng: random.Random) -> tuple[str, str]:
    """Returns a snake_case company name and its ticker, for example `velmora_foods` and `vlmf`."""
    syllables = [
        rng.choice(words.ONSETS) + rng.choice(words.VOWELS) + rng.choice(words.CODAS) for _ in range(rng.choice((2, 3)))
    ]
    stem, sector = "".join(syllables), rng.choice(words.SECTORS)
    consonants = [letter for letter in stem[1:] if letter not in "aeiou"]
    return f"{stem}_{sector}", stem[0] + "".join(consonants[:2]) + sector[0]


def invent_statements(rng: random.Random, ticker: str) -> tuple[Statement, ...]:
    """Returns income statement, balance sheet and cash flow, and one or two of segments, tax and borrowings."""
    count = rng.choice((3, 3, 4))
    first = rng.randint(2012, 2025 - count)
    years = tuple(str(first + offset) for offset in range(count))
    extra = rng.sample(("segments", "tax", "borrowings"), rng.choice((1, 2)))
    numbers = _invent_numbers(rng, count)
    return tuple(
        _statement(rng, kind, words.TABLE_NAMES[kind].format(ticker=ticker), years, numbers[kind])
        for kind in ("income", "balance", "cash_flow", *sorted(extra))
    )


def as_table(company: str, statement: Statement, *, text: bool) -> Table:
    """Returns the statement as a table with number cells, or with text cells as in filings: `$1,234`, `$(6)`."""
    rows: list[tuple[Cell, ...]] = []
    for index, (label, series) in enumerate(statement.values.items()):
        cells: tuple[Cell, ...] = tuple(_as_text(value, dollar=index == 0) for value in series) if text else series
        rows.append((label, *cells))
    return Table(
        company=company,
        name=statement.table_name,
        columns=(LINE_ITEM, *statement.years),
        rows=tuple(rows),
        metadata={"title": words.TITLES[statement.kind], "unit": "USD millions"},
    )


def _as_text(value: int, *, dollar: bool) -> str:
    if value < 0:
        return f"$({-value:,})"
    return f"${value:,}" if dollar else f"{value:,}"


def _statement(
    rng: random.Random, kind: str, table_name: str, years: tuple[str, ...], numbers: Mapping[str, Series]
) -> Statement:
    labels = {concept: rng.choice(words.STATEMENTS[kind][concept]) for concept in numbers}
    return Statement(
        kind=kind,
        table_name=table_name,
        years=years,
        values={labels[concept]: series for concept, series in numbers.items()},
        concepts={label: concept for concept, label in labels.items()},
    )


def _invent_numbers(rng: random.Random, count: int) -> dict[str, dict[str, Series]]:
    """Returns kind of statement -> concept -> one number per year.

    Numbers are invented year by year, so that the statements of a company agree. Rows that the company lacks are left
    out at the end.
    """
    lacking = {kind: _choose_lacking(rng, kind) for kind in words.STATEMENTS}
    shape = {name: rng.uniform(low, high) for name, (low, high) in _SHAPE.items()}
    revenue = float(rng.randint(900, 4800))
    years: list[dict[str, dict[str, int]]] = []
    for _ in range(count):
        years.append(_invent_year(rng, round(revenue), shape, lacking))
        revenue *= rng.uniform(0.82, 1.25)
    return {
        kind: {concept: tuple(year[kind][concept] for year in years) for concept in labels}
        for kind, labels in (
            (kind, [concept for concept in labels if concept not in lacking[kind]])
            for kind, labels in words.STATEMENTS.items()
        )
    }


def _choose_lacking(rng: random.Random, kind: str) -> frozenset[str]:
    optional = words.OPTIONAL[kind]
    if not optional:
        return frozenset()
    return frozenset(rng.sample(optional, rng.randint(1 if kind == "balance" else 0, min(2, len(optional)))))


_SHAPE: Mapping[str, tuple[float, float]] = {
    "cost": (0.45, 0.72),
    "research": (0.03, 0.10),
    "selling": (0.08, 0.17),
    "assets": (0.7, 1.4),
    "leverage": (0.35, 0.8),
}


def _invent_year(
    rng: random.Random, revenue: int, shape: Mapping[str, float], lacking: Mapping[str, frozenset[str]]
) -> dict[str, dict[str, int]]:
    def part(whole: float, share: float) -> int:
        return max(20, round(whole * share * rng.uniform(0.85, 1.15)))

    income = {"revenue": revenue, "cost": part(revenue, shape["cost"])}
    income["gross"] = revenue - income["cost"]
    income["research"] = 0 if "research" in lacking["income"] else part(revenue, shape["research"])
    income["selling"] = part(revenue, shape["selling"])
    income["operating"] = income["gross"] - income["research"] - income["selling"]
    income["interest"] = part(revenue, 0.025)
    income["tax"] = max(24, round((income["operating"] - income["interest"]) * rng.uniform(0.17, 0.27)))
    income["net"] = income["operating"] - income["interest"] - income["tax"]
    balance = _balance_year(part, revenue * shape["assets"], shape["leverage"], lacking["balance"])
    return {
        "income": income,
        "balance": balance,
        "cash_flow": _cash_flow_year(rng, part, revenue, income["net"], lacking["cash_flow"]),
        "segments": _segments_year(rng, revenue, lacking["segments"]),
        "tax": _tax_year(rng, income["tax"]),
        "borrowings": _borrowings_year(part, balance["debt"]),
    }


def _balance_year(part: _Part, size: float, leverage: float, lacking: frozenset[str]) -> dict[str, int]:
    shares = {"cash": 0.12, "receivables": 0.16, "inventory": 0.15, "property": 0.37, "goodwill": 0.2}
    balance = {concept: 0 if concept in lacking else part(size, share) for concept, share in shares.items()}
    balance["assets"] = sum(balance.values())
    balance["payables"] = part(balance["assets"], 0.15)
    balance["debt"] = part(balance["assets"], 0.4 * leverage)
    balance["liabilities"] = balance["payables"] + balance["debt"] + part(balance["assets"], 0.3 * leverage)
    balance["equity"] = balance["assets"] - balance["liabilities"]
    return balance


def _cash_flow_year(
    rng: random.Random, part: _Part, revenue: int, net_income: int, lacking: frozenset[str]
) -> dict[str, int]:
    flow = {"depreciation": part(revenue, 0.05), "compensation": part(revenue, 0.03)}
    flow["operations"] = net_income + flow["depreciation"] + flow["compensation"] + rng.randint(-60, 90)
    uses = {"capital": 0.06, "acquisitions": 0.04, "dividends": 0.03, "repurchases": 0.04}
    for concept, share in uses.items():
        flow[concept] = 0 if concept in lacking else -part(revenue, share)
    flow["issuance"] = part(revenue, 0.07)
    flow["change"] = flow["operations"] + sum(flow[concept] for concept in uses) + flow["issuance"]
    return flow


def _segments_year(rng: random.Random, revenue: int, lacking: frozenset[str]) -> dict[str, int]:
    present = [concept for concept in words.SEGMENTS if concept not in lacking and concept != "total"]
    weights = [rng.uniform(0.5, 1.6) for _ in present]
    amounts = [max(20, round(revenue * weight / sum(weights))) for weight in weights]
    amounts[0] += revenue - sum(amounts)
    return {**dict.fromkeys(words.SEGMENTS, 0), **dict(zip(present, amounts, strict=True)), "total": revenue}


def _tax_year(rng: random.Random, total: int) -> dict[str, int]:
    tax = {"state": round(total * rng.uniform(0.1, 0.2)), "foreign": round(total * rng.uniform(0.15, 0.3))}
    tax["deferred"] = round(total * rng.uniform(-0.2, 0.2)) or 1
    tax["credits"] = -max(1, round(total * rng.uniform(0.04, 0.12)))
    return {"federal": total - sum(tax.values()), **tax, "total": total}


def _borrowings_year(part: _Part, long_term: int) -> dict[str, int]:
    borrowings = {"notes": round(long_term * 0.6)}
    borrowings["loans"] = round(long_term * 0.25)
    borrowings["leases"] = long_term - borrowings["notes"] - borrowings["loans"]
    borrowings |= {"paper": part(long_term, 0.15), "facility": part(long_term, 0.1)}
    return {**borrowings, "total": sum(borrowings.values())}
