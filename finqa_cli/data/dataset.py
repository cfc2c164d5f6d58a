"""A data set in memory: tables of companies, and the questions about them."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finqa_cli.errors import DataError
from finqa_cli.grading import REMOVED
from finqa_cli.types.splits import SPLITS

Cell = str | int | float | None

LINE_ITEM = "line_item"

BOXED_SOURCE = "Snorkel finqa-data"
"""Source of data with boxed answers that names none: those are Snorkel's."""
SNORKEL_REPOSITORY = "snorkelai/finqa-data"


def default_grader(source: str, named: str = "") -> str:
    """Returns the grader of data unless the user chooses one: `openenv` for Snorkel's published data, else `strict`.

    Args:
        source: Where the data comes from, see `DataSet`.
        named: Grader that the data names; one that was removed is replaced by `strict`.
    """
    if named:
        return "strict" if named in REMOVED else named
    return "openenv" if BOXED_SOURCE in source or SNORKEL_REPOSITORY in source else "strict"


def named_tables(text: str) -> tuple[str, ...]:
    """Returns the names in a `table_name` field: nothing, one name, or a JSON list (rLLM-FinQA writes several)."""
    text = text.strip()
    if not text.startswith("["):
        return (text,) if text else ()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else (text,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a company.

    Attributes:
        columns: Names, unique; the first column holds the line items.
        rows: [R][C] cells in the order of the columns.
        metadata: What get_table_info returns in addition to the columns (title, unit, ...); JSON values.
    """

    company: str
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its truth.

    Attributes:
        user_query: What the agent reads.
        answer: The truth, in the form that the grader reads.
        type: Question type, for breakdowns; may be empty.
        table_name: Name of the table that contains the answer, a JSON list if there are several, or empty if unknown.
        gold_sql: One query on that table that yields the answer, or empty when unknown.
    """

    id: str
    company: str
    question: str
    user_query: str
    answer: str
    split: str
    type: str = ""
    explanation: str = ""
    table_name: str = ""
    gold_sql: str = ""

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that contain the answer; none when unknown."""
        return named_tables(self.table_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Tables and the questions about them. Training is refused if a company has questions in more than one split.

    Attributes:
        source: Where the data comes from, in words.
        evaluation_only: Whether the data is marked as not for training.
        expert: `gold` if gold SQL, and nothing else, demonstrates the questions; else empty.
        grader: Grader of answers unless the user names one; empty: see `default_grader`.
    """

    tables: tuple[Table, ...]
    questions: tuple[Question, ...]
    source: str
    licence: str
    evaluation_only: bool = False
    expert: str = ""
    grader: str = ""

    def companies(self) -> tuple[str, ...]:
        """Returns all companies that have tables, sorted."""
        return tuple(sorted({table.company for table in self.tables}))

    def split_counts(self) -> dict[str, int]:
        """Returns questions by split, in the order train, dev, test, then others by name."""
        counts = Counter(question.split for question in self.questions)
        order = [split for split in SPLITS if split in counts] + sorted(set(counts) - set(SPLITS))
        return {split: counts[split] for split in order}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitShares:
    """Shares of the companies by split; they sum to 1.

    Raises:
        DataError: A share is negative or no finite number, or they do not sum to 1.
    """

    train: float = 0.6
    dev: float = 0.15
    test: float = 0.25

    def __post_init__(self) -> None:
        shares = (self.train, self.dev, self.test)
        if not all(map(math.isfinite, shares)) or min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-6:
            given = ",".join(f"{share:g}" for share in shares)
            raise DataError(
                f"Split shares must be three non-negative numbers that sum to 1, but are {given}.",
                remedy="--splits 0.6,0.15,0.25",
            )

    def counts(self, total: int) -> dict[str, int]:
        """Returns how many of `total` companies each split gets: largest remainders, ties to the earlier split."""
        shares = {"train": self.train, "dev": self.dev, "test": self.test}
        counts = {split: int(share * total + 1e-9) for split, share in shares.items()}
        by_remainder = sorted(shares, key=lambda split: counts[split] - shares[split] * total)
        for split in by_remainder[: total - sum(counts.values())]:
            counts[split] += 1
        return counts


def split_companies(companies: Sequence[str], seed: int, shares: SplitShares) -> dict[str, str]:
    """Returns the split of each company: shuffled by the seed, then cut by the shares, largest remainders first.

    With the default shares, at least one of two or more companies is in the test split. `split_of` does not ensure it.
    """
    order = sorted(companies)
    random.Random(f"finqa:{seed}:companies").shuffle(order)
    splits = [split for split, count in shares.counts(len(order)).items() for _ in range(count)]
    return dict(zip(order, splits, strict=True))


def split_of(company: str, seed: int, shares: SplitShares) -> str:
    """Returns the split of a company, which depends on its name and the seed only, not on other companies."""
    digest = hashlib.sha256(f"{seed}:{company}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < shares.train:
        return "train"
    return "dev" if place < shares.train + shares.dev else "test"
