"""Split of a file by its name, and clusters of rows that must not be in two splits. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import PurePath

SPLITS = ("train", "dev", "test")

SPLIT_NAMES: Mapping[str, str] = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}
"""Names of splits as data sets write them -> ours."""


def choose_split(wanted: str, available: Collection[str]) -> str:
    """Return the first name in `wanted`, a comma-separated list, that is available.

    If none is available, return the first name: `Environment.tasks` then raises the error that lists its splits.
    """
    names = [SPLIT_NAMES.get(name.strip(), name.strip()) for name in wanted.split(",")]
    return next((name for name in names if name in available), wanted.partition(",")[0].strip())


def split_of_name(path: PurePath) -> str:
    """The split in the name of a file: `val_finqa.csv` is dev, `finqa-test (1).json` is test; empty if there is none.

    A name with the word `test` is test data even if it names another split too, because training on test rows cannot
    be undone.
    """
    words = re.split(r"[^a-z]+", path.stem.lower())
    named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return next((split for split in reversed(SPLITS) if split in named), "")


def cluster_of(company: str, identity: str, prompt: str, question: str) -> str:
    """Cluster of a row: its company, else the ticker in its id, else its page (see `page_cluster`).

    Args:
        company: Company of the row; empty if it names none.
        identity: Id of the row; FinQA's ids begin with the ticker, such as `AAL/2018/page_13.pdf-2`.
        prompt: Text with the page and the question.
        question: The question alone.
    """
    ticker = identity.partition("/")[0].strip() if "/" in identity else ""
    return company or ticker or page_cluster(prompt, question)


def page_cluster(prompt: str, question: str) -> str:
    """A name for the page that precedes the question in a prompt. Differences in spacing do not change it."""
    page = prompt.rpartition(question)[0] or prompt
    return f"page {hashlib.sha256(' '.join(page.split()).encode()).hexdigest()[:16]}"
