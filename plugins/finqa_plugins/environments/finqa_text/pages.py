"""Invented report pages: a company, a table of figures over three years, and the sentences around it.

They look like the pages of FinQA: lower case, blanks around punctuation, negative figures twice (`-32 ( 32 )`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from finqa_plugins.environments.finqa_text.text_rows import Table

_FIRST = ("alder", "birch", "cedar", "copper", "delta", "harbor", "iron", "juniper", "lake", "maple", "north", "summit")
_SECOND = ("energy", "foods", "freight", "health", "insurance", "logistics", "materials", "networks", "retail", "steel")
_FLOWS = ("net sales", "cost of sales", "operating expenses", "interest expense", "capital expenditures")
_STOCKS = ("total assets", "long-term debt", "inventories", "accounts receivable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page.

    Attributes:
        ticker: Unique among the companies.
        file: `TICKER/year/page_n.pdf`, as FinQA names pages.
        years: Newest first, as the columns of the table.
        table: [R][C] cells.
        figures: Row name -> figure by year, as programs write them (`-32`).
        shares: Thousands of shares bought back, in the text only.
        paid: Millions paid for them, in the text only.
        before: Text above the table.
        after: Text below it.
    """

    ticker: str
    file: str
    years: tuple[int, ...]
    table: Table
    figures: Mapping[str, Mapping[int, str]]
    shares: str
    paid: str
    before: str
    after: str


def tickers(count: int, rng: random.Random) -> list[str]:
    """Different names of three letters."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return ["".join(letters[code // 26**place % 26] for place in range(3)) for code in rng.sample(range(26**3), count)]


def invent_page(ticker: str, rng: random.Random) -> Page:
    """A page of this company."""
    newest = rng.randint(2008, 2024)
    years = (newest, newest - 1, newest - 2)
    decimals = rng.choice((0, 0, 1))
    names = ("net sales", *rng.sample(_FLOWS[1:], 2), *rng.sample(_STOCKS, 2), "other income")
    figures = {name: _series(years, decimals, rng) for name in names[:-1]}
    figures[names[-1]] = {year: _figure(rng.choice((-1, 1)) * rng.uniform(10, 90), decimals) for year in years}
    table = (
        ("( in millions )", *map(str, years)),
        *((name, *(_cell(figures[name][year], first=name == names[0]) for year in years)) for name in names),
    )
    shares, paid = str(rng.randint(900, 9000)), _figure(rng.uniform(40, 700), 1)
    business = rng.choice(_SECOND)
    name = f"{rng.choice(_FIRST)} {business}"
    return Page(
        ticker=ticker,
        file=f"{ticker}/{newest}/page_{rng.randint(12, 140)}.pdf",
        years=years,
        table=table,
        figures=figures,
        shares=shares,
        paid=paid,
        before=(
            f"{name} inc . and its subsidiaries ( the 201ccompany 201d ) operate in the {business} business . "
            f"the following table sets forth selected financial data for the years ended december 31 , {years[0]} , "
            f"{years[1]} and {years[2]} . all amounts are in millions of dollars unless stated otherwise ."
        ),
        after=(
            f"net sales in {newest} reflect {rng.choice(('price', 'volume', 'currency'))} effects in most regions . "
            f"during {newest} , the company repurchased {shares} thousand shares of its common stock for a total of "
            f"$ {paid} million . see note {rng.randint(2, 18)} to the consolidated financial statements ."
        ),
    )


def _series(years: tuple[int, ...], decimals: int, rng: random.Random) -> dict[int, str]:
    value = rng.uniform(120, 9000)
    series: dict[int, str] = {}
    for year in reversed(years):
        series[year] = _figure(value, decimals)
        value *= rng.uniform(0.75, 1.4)
    return series


def _figure(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


def _cell(figure: str, *, first: bool) -> str:
    dollar = "$ " if first else ""
    return f"{dollar}{figure} ( {figure[1:]} )" if figure.startswith("-") else f"{dollar}{figure}"
