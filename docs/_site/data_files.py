"""Types of the files in data folders and snapshots."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from written_types import ABSENT, Written

Cell = str | float | None
Split = Literal["train", "dev", "test"]
TableRows = list[dict[str, Cell]]


class Read(Written):
    """An object that users may write. Further fields are ignored."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class OwnQuestion(Read):
    """A row of your own questions, for `finqa data import tables`, with the first name of each column."""

    question: str
    """The question, with the unit of its answer."""
    answer: str | float | None = ABSENT
    """The right answer: the number alone. If missing, the result of `gold_sql` or `program`."""
    gold_sql: str | None = ABSENT
    """One SQLite query that returns the answer."""
    program: str | None = ABSENT
    """A program in FinQA's language, such as `subtract(11240, 11000), divide(#0, 11000)`."""
    company: str | None = ABSENT
    """Company; optional if the table determines it, or if there is only one."""
    table: str | list[str] | None = ABSENT
    """Name of the table with the answer, or several names."""
    id: str | float | None = ABSENT
    """Id; if missing, `q` and the number of the row."""
    split: str | None = ABSENT
    """`train`, `dev` or `test`; if missing, companies are divided by `--splits`."""
    question_type: str | None = ABSENT
    """Question type, for breakdowns."""
    explanation: str | None = ABSENT
    """Explanation, for `finqa data show --answer`."""


class QuestionRow(Read):
    """A row of `benchmark_questions/finqa.csv`, all cells as text."""

    id: str
    """Unique id."""
    user_query: Annotated[str, Field(min_length=1)]
    """What the agent reads."""
    company: Annotated[str, Field(min_length=1)]
    """Name of a folder in `input_companies`."""
    question: str
    """The question alone."""
    answer: Annotated[str, Field(min_length=1)]
    """The right answer, in the form that the grader reads."""
    question_type: str = ABSENT
    """Question type, for breakdowns."""
    explanation: str = ABSENT
    """Explanation, for `finqa data show --answer`."""
    split: str = ABSENT
    """`train`, `dev` or `test`; if empty, companies are divided by a fixed seed."""
    table_name: str = ABSENT
    """Name of the table with the answer, or a JSON list of names."""
    gold_sql: str = ABSENT
    """One SQLite query that returns the answer."""


class AboutFile(Read):
    """`dataset.json` of a data folder: origin and permitted use."""

    source: str = ABSENT
    """Where the data comes from, in words."""
    licence: str = ABSENT
    """Licence of the data."""
    evaluation_only: bool = ABSENT
    """The data must not be used for training."""
    expert: str = ABSENT
    """`gold` if only gold SQL demonstrates the questions."""


class ImportFile(Written):
    """`import.json` of a data folder: the files of the last import. `--overwrite` replaces only unchanged ones."""

    finqa: str
    """Version of finqa."""
    files: dict[str, str]
    """SHA-256 of every file that the import wrote, by path."""


class SnapshotManifest(Written):
    """`manifest.json` of a snapshot."""

    schema_version: Literal[1]
    """Version of the layout of the snapshot."""
    digest: str
    """`sha256:` and the digest over the names and digests of the other files. Its first 12 digits name the folder."""
    files: dict[str, str]
    """SHA-256 of the other files."""
    companies: int
    """Number of companies."""
    tables: int
    """Number of tables."""
    questions: int
    """Number of questions."""
    splits: dict[str, int]
    """Number of questions by split."""
    source: str
    """Where the data comes from, in words."""
    licence: str
    """Licence of the data."""
    evaluation_only: bool
    """The data must not be used for training."""
    expert: str = ABSENT
    """`gold` if only gold SQL demonstrates the questions; absent otherwise."""


class SnapshotTask(Written):
    """A line of `tasks.jsonl` of a snapshot: a question without its truth."""

    id: str
    """Unique id."""
    company: str
    """Company."""
    question: str
    """The question alone."""
    user_query: str
    """What the agent reads."""
    split: Split
    """Split."""
    type: str
    """Question type; may be empty."""


class SnapshotTruth(Written):
    """A line of `truth.jsonl` of a snapshot: the truth of a question, which no SQL connection opens."""

    id: str
    """Id of the question."""
    answer: Annotated[str, Field(min_length=1)]
    """The right answer."""
    table_name: str = ABSENT
    """Name of the table with the answer; absent if unknown."""
    gold_sql: str = ABSENT
    """One query that returns the answer; absent if unknown."""
    explanation: str = ABSENT
    """Explanation; absent if there is none."""
