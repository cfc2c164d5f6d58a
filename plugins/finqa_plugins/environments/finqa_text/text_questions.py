"""Questions about an invented page, each with its program, in the proportions of FinQA's own kinds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from finqa_plugins.environments.finqa_text.pages import Page

Asked = tuple[str, str]
"""Question and program."""

_TRIES = 100


def questions(page: Page, count: int, rng: random.Random) -> Iterator[Asked]:
    """`count` different questions; the kinds take turns, beginning anywhere."""
    seen: set[str] = set()
    place = rng.randrange(len(_KINDS))
    while len(seen) < count:
        kind = _KINDS[place % len(_KINDS)]
        place += 1
        asked = next((asked for _ in range(_TRIES) if (asked := kind(page, rng))[0] not in seen), None)
        if asked is not None:  # a kind with few variants runs out of them
            seen.add(asked[0])
            yield asked


def _change(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    return (
        f"what was the change in {name} from {old} to {new} , in millions ?",
        f"subtract({page.figures[name][new]}, {page.figures[name][old]})",
    )


def _growth(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    return f"what was the percentage change in {name} from {old} to {new} ?", _growth_steps(page, name, new, old, 0)


def _growth_gap(page: Page, rng: random.Random) -> Asked:
    one, new, old = _row_and_years(page, rng)
    other = rng.choice([name for name in _positive(page) if name != one])
    return (
        f"by how much did the growth rate of {one} exceed that of {other} from {old} to {new} ?",
        f"{_growth_steps(page, one, new, old, 0)}, {_growth_steps(page, other, new, old, 2)}, subtract(#1, #3)",
    )


def _ratio(page: Page, rng: random.Random) -> Asked:
    part, whole = rng.sample(_positive(page), 2)
    year = rng.choice(page.years)
    return (
        f"what was the ratio of {part} to {whole} in {year} ?",
        f"divide({page.figures[part][year]}, {page.figures[whole][year]})",
    )


def _sum_of_years(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    return (
        f"what was the total of {name} in {old} and {new} , in millions ?",
        f"add({page.figures[name][old]}, {page.figures[name][new]})",
    )


def _average_of_two(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    return (
        f"what was the average {name} of the years {old} and {new} , in millions ?",
        f"add({page.figures[name][old]}, {page.figures[name][new]}), divide(#0, const_2)",
    )


def _over_the_row(page: Page, rng: random.Random) -> Asked:
    name = rng.choice(_positive(page))
    operation, word = rng.choice((("average", "average"), ("max", "highest"), ("min", "lowest"), ("sum", "total")))
    return f"what was the {word} {name} over the years shown , in millions ?", f"table_{operation}({name}, none)"


def _comparison(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    return (
        f"was {name} higher in {new} than in {old} ?",
        f"greater({page.figures[name][new]}, {page.figures[name][old]})",
    )


def _price_per_share(page: Page, rng: random.Random) -> Asked:
    return (
        "what was the average price per share that the company paid in its repurchases , in dollars ?",
        f"multiply({page.paid}, const_1000), divide(#0, {page.shares})",
    )


def _projection(page: Page, rng: random.Random) -> Asked:
    name, new, old = _row_and_years(page, rng)
    steps = _growth_steps(page, name, new, old, 0)
    return (
        f"if {name} grows after {new} by the same percentage as from {old} to {new} , what will it be , in millions ?",
        f"{steps}, add(#1, const_1), multiply({page.figures[name][new]}, #2)",
    )


def _share_in_percent(page: Page, rng: random.Random) -> Asked:
    income, year = "other income", rng.choice(page.years)
    whole = rng.choice(_positive(page))
    return (
        f"what was {income} in {year} per $ 100 of {whole} , in dollars ?",
        f"divide({page.figures[income][year]}, {page.figures[whole][year]}), multiply(#0, const_100)",
    )


def _growth_steps(page: Page, name: str, new: int, old: int, step: int) -> str:
    base = page.figures[name][old]
    return f"subtract({page.figures[name][new]}, {base}), divide(#{step}, {base})"


def _row_and_years(page: Page, rng: random.Random) -> tuple[str, int, int]:
    old, new = sorted(rng.sample(page.years, 2))
    return rng.choice(_positive(page)), new, old


def _positive(page: Page) -> list[str]:
    """Rows whose figures are positive in every year, so that growth and shares mean something."""
    return [name for name, series in page.figures.items() if not any(map(_is_negative, series.values()))]


def _is_negative(figure: str) -> bool:
    return figure.startswith("-")


_KINDS: tuple[Callable[[Page, random.Random], Asked], ...] = (
    _ratio,
    _growth,
    _change,
    _over_the_row,
    _growth,
    _ratio,
    _sum_of_years,
    _growth_gap,
    _average_of_two,
    _comparison,
    _price_per_share,
    _projection,
    _share_in_percent,
)
