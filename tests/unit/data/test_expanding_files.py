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
def test_a_small_parquet_file_does_not_fill_the_memory(tmp_path: Path, reader: Any) -> None:
    """Rows of questions share the texts that the file stores once; files of tasks may not expand so far."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = arrow.array(["x" * 1000] * 200_000)
    parquet.write_table(arrow.table({"question": texts}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reader is parquet_rows:
        assert len(list(reader(tmp_path / "bomb.parquet"))) == 200_000
    else:
        with pytest.raises(RowError, match="expands to more than"):
            list(reader(tmp_path / "bomb.parquet"))
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_a_parquet_file_of_too_many_rows_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"question": arrow.array(["x"] * 2_000_001)}), tmp_path / "rows.parquet")
    with pytest.raises(ProblemError, match="at most 2000000"):
        next(parquet_rows(tmp_path / "rows.parquet"))


def test_a_parquet_file_of_repeated_prompts_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "how much?" * 100, "answer": str(number)} for number in range(3000)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert list(parquet_rows(tmp_path / "rows.parquet")) == rows
