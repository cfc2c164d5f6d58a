"""Small files that would fill the memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.data.data_problems import ProblemError
from finqa_cli.data.question_files.read_files import parquet_rows
from finqa_plugins.environments._task_files.task_rows import RowError, _parquet_rows


@pytest.mark.parametrize("reader", [parquet_rows, _parquet_rows])
def test_a_parquet_file_that_expands_without_bound_is_refused(tmp_path: Path, reader: Any) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = arrow.array(["x" * 1000] * 200_000)
    parquet.write_table(arrow.table({"question": texts}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ProblemError, RowError), match="expands to more than"):
        list(reader(tmp_path / "bomb.parquet"))
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_a_parquet_file_of_repeated_prompts_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "how much?" * 100, "answer": str(number)} for number in range(3000)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert list(parquet_rows(tmp_path / "rows.parquet")) == rows
