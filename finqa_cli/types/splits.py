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
    """Return the first name in `wanted`, a list separated by commas, that is available; without one the first name.

    The latter is for an error message: asked for its tasks, the environment names the splits that it has.
    """
    names = [SPLIT_NAMES.get(name.strip(), name.strip()) for name in wanted.split(",")]
    return next((name for name in names if name in available), wanted.partition(",")[0].strip())


def split_of_name(path: PurePath) -> str:
    """The split in the name of a file: `val_finqa.csv` is dev, `finqa-test (1).json` is test; or nothing.

    A name with the word `test` is test data, also beside other words: test rows that were trained on cannot be undone.
    """
    words = re.split(r"[^a-z]+", path.stem.lower())
    named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return next((split for split in reversed(SPLITS) if split in named), "")


def cluster_of(company: str, identity: str, prompt: str, question: str) -> str:
    """Cluster of a row: its company, else the ticker in its id, else its page (see `page_cluster`).

    Args:
        company: Empty when the row names none.
        identity: Its id; FinQA's begin with the ticker, `AAL/2018/page_13.pdf-2`.
        prompt: Page and question.
        question: Alone.
    """
    ticker = identity.partition("/")[0].strip() if "/" in identity else ""
    return company or ticker or page_cluster(prompt, question)


def page_cluster(prompt: str, question: str) -> str:
    """A name for the page that stands before the question in a prompt; spacing does not count."""
    page = prompt.rpartition(question)[0] or prompt
    return f"page {hashlib.sha256(' '.join(page.split()).encode()).hexdigest()[:16]}"
