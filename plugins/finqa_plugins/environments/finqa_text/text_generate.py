"""Generates the embedded tasks: invented report pages with questions, programs and truths, from a seed.

A page has a company, a table of figures over three years, and the sentences around it. It looks like the pages of
FinQA: lower case, blanks around punctuation, negative figures written twice (`-32 ( 32 )`). The kinds of questions have
about the same proportions as in FinQA.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from finqa_cli.grading.programs import execute, parse
from finqa_plugins.environments._task_files.report_pages import Table, page_text, question_text
from finqa_plugins.environments._task_files.task_rows import TaskData, embedded_data
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_rows import TextRow, divide, kind_of

SHARES = {"dev": 0.15, "test": 0.15}


def generate(config: FinQATextConfig) -> TaskData[TextRow]:
    """Generate the embedded tasks, divided by company; the same for the same options.

    Raises:
        ProgramError: A generated program has no result, which is a bug.
    """
    rng = random.Random(f"finqa-text:{config.seed}")
    rows = []
    for ticker in tickers(config.companies, rng):
        # One generator per company: more companies or questions do not change the others.
        own = random.Random(f"finqa-text:{config.seed}:{ticker}")
        page = invent_page(ticker, own)
        asked = questions(page, config.questions, own, config.kinds)
        rows += [_row(page, number, *one) for number, one in enumerate(asked, start=1)]
    content = json.dumps([[row.id, row.text, row.program, row.truth] for row in rows])
    return embedded_data(divide(rows, SHARES, config.seed), content)


def _row(page: ReportPage, number: int, question: str, program: str) -> TextRow:
    text = question_text(page_text(page.before, page.table, page.after), question)
    read = parse(program)
    return TextRow(
        id=f"{page.file}-{number}",
        company=page.ticker,
        question=question,
        text=text,
        truth=execute(read, page.table),
        program=program,
        table=page.table,
        kind=kind_of(read.steps),
    )


_FIRST = ("alder", "birch", "cedar", "copper", "delta", "harbor", "iron", "juniper", "lake", "maple", "north", "summit")
_SECOND = ("energy", "foods", "freight", "health", "insurance", "logistics", "materials", "networks", "retail", "steel")
_FLOWS = ("net sales", "cost of sales", "operating expenses", "interest expense", "capital expenditures")
_STOCKS = ("total assets", "long-term debt", "inventories", "accounts receivable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """One invented page.

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
    """Draw different names of three letters."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return ["".join(letters[code // 26**place % 26] for place in range(3)) for code in rng.sample(range(26**3), count)]


def invent_page(ticker: str, rng: random.Random) -> ReportPage:
    """Invent a page of this company."""
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
    return ReportPage(
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


Asked = tuple[str, str]
"""Question and program."""

Kind = Callable[[ReportPage, random.Random], Asked]

_TRIES = 100


def questions(page: ReportPage, count: int, rng: random.Random, kinds: Collection[str] = ()) -> Iterator[Asked]:
    """Yield `count` different questions, or as many as there are; the kinds alternate, from a random start.

    Args:
        page: The page that the questions are about.
        count: Number of questions.
        rng: Source of every choice.
        kinds: Keys of `KINDS`; empty for all.
    """
    seen: set[str] = set()
    turns = [name for name in _TURNS if not kinds or name in kinds]
    place, dry = rng.randrange(len(turns)), 0
    while len(seen) < count and dry < len(turns):
        kind = KINDS[turns[place % len(turns)]]
        place += 1
        asked = next((asked for _ in range(_TRIES) if (asked := kind(page, rng))[0] not in seen), None)
        dry = dry + 1 if asked is None else 0  # a kind has a limited number of different questions
        if asked is not None:
            seen.add(asked[0])
            yield asked


def _of_two_years(question: str, program: str) -> Kind:
    """Return a kind of questions about one row in two years.

    Args:
        question: Template with {row}, {new} and {old} for the years.
        program: Template with {a} for the figure of the newer year and {b} for that of the older one.
    """

    def ask(page: ReportPage, rng: random.Random) -> Asked:
        row, new, old = _row_and_years(page, rng)
        figures = {"a": page.figures[row][new], "b": page.figures[row][old]}
        return question.format(row=row, new=new, old=old), program.format(**figures)

    return ask


_GROWTH = _of_two_years(
    "what was the percentage change in {row} from {old} to {new} ?", "subtract({a}, {b}), divide(#0, {b})"
)
_CHANGE = _of_two_years("what was the change in {row} from {old} to {new} , in millions ?", "subtract({a}, {b})")
_SUM_OF_YEARS = _of_two_years("what was the total of {row} in {old} and {new} , in millions ?", "add({b}, {a})")
_AVERAGE_OF_TWO = _of_two_years(
    "what was the average {row} of the years {old} and {new} , in millions ?", "add({b}, {a}), divide(#0, const_2)"
)
_COMPARISON = _of_two_years("was {row} higher in {new} than in {old} ?", "greater({a}, {b})")
_PROJECTION = _of_two_years(
    "if {row} grows after {new} by the same percentage as from {old} to {new} , what will it be , in millions ?",
    "subtract({a}, {b}), divide(#0, {b}), add(#1, const_1), multiply({a}, #2)",
)


def _growth_gap(page: ReportPage, rng: random.Random) -> Asked:
    one, new, old = _row_and_years(page, rng)
    other = rng.choice([name for name in _positive(page) if name != one])
    (a, b), (c, d) = ((page.figures[name][new], page.figures[name][old]) for name in (one, other))
    return (
        f"by how much did the growth rate of {one} exceed that of {other} from {old} to {new} ?",
        f"subtract({a}, {b}), divide(#0, {b}), subtract({c}, {d}), divide(#2, {d}), subtract(#1, #3)",
    )


def _ratio(page: ReportPage, rng: random.Random) -> Asked:
    part, whole = rng.sample(_positive(page), 2)
    year = rng.choice(page.years)
    return (
        f"what was the ratio of {part} to {whole} in {year} ?",
        f"divide({page.figures[part][year]}, {page.figures[whole][year]})",
    )


def _over_the_row(page: ReportPage, rng: random.Random) -> Asked:
    name = rng.choice(_positive(page))
    operation, word = rng.choice((("average", "average"), ("max", "highest"), ("min", "lowest"), ("sum", "total")))
    return f"what was the {word} {name} over the years shown , in millions ?", f"table_{operation}({name}, none)"


def _price_per_share(page: ReportPage, rng: random.Random) -> Asked:
    return (
        "what was the average price per share that the company paid in its repurchases , in dollars ?",
        f"multiply({page.paid}, const_1000), divide(#0, {page.shares})",
    )


def _share_in_percent(page: ReportPage, rng: random.Random) -> Asked:
    income, year = "other income", rng.choice(page.years)
    whole = rng.choice(_positive(page))
    return (
        f"what was {income} in {year} per $ 100 of {whole} , in dollars ?",
        f"divide({page.figures[income][year]}, {page.figures[whole][year]}), multiply(#0, const_100)",
    )


def _row_and_years(page: ReportPage, rng: random.Random) -> tuple[str, int, int]:
    old, new = sorted(rng.sample(page.years, 2))
    return rng.choice(_positive(page)), new, old


def _positive(page: ReportPage) -> list[str]:
    """Return the rows whose figures are positive in every year, so that growth rates and shares are meaningful."""
    return [name for name, series in page.figures.items() if not any(map(_is_negative, series.values()))]


def _is_negative(figure: str) -> bool:
    return figure.startswith("-")


KINDS: Mapping[str, Kind] = {
    "ratio": _ratio,
    "growth": _GROWTH,
    "change": _CHANGE,
    "row": _over_the_row,
    "sum": _SUM_OF_YEARS,
    "growth_gap": _growth_gap,
    "average": _AVERAGE_OF_TWO,
    "comparison": _COMPARISON,
    "price": _price_per_share,
    "projection": _PROJECTION,
    "share": _share_in_percent,
}

_TURNS = (
    *("ratio", "growth", "change", "row", "growth", "ratio", "sum"),
    *("growth_gap", "average", "comparison", "price", "projection", "share"),
)
