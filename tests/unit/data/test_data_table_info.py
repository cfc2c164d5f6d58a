from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.data import Cell, Table
from finqa_cli.data.snapshots.compile import storage, table_info


def table(columns: dict[str, list[Cell]], **metadata: object) -> Table:
    rows = tuple(zip(*columns.values(), strict=True))
    return Table(company="acme", name="t", columns=tuple(columns), rows=rows, metadata=metadata)


def test_numeric_columns_show_a_type_but_no_values() -> None:
    columns: dict[str, list[Cell]] = {
        "line_item": ["net_sales", "tax", "tax"],
        "2024": ["$1,234", "$(6)", "5"],
        "2023": [1, 2, 3],
        "note": ["a", "b", "b"],
    }
    assert table_info(table(columns, title="Income", unit="USD")) == (
        '{"title": "Income","unit": "USD","column_dtypes": {"line_item": "object","2024": "object","2023": "int64",'
        '"note": "object"},"unique_vals_per_col": {"line_item": ["net_sales","tax"],"note": ["a","b"]}}'
    )


def test_the_first_cell_does_not_count_and_missing_numbers_show() -> None:
    info = json.loads(table_info(table({"x": ["a", "b"], "y": ["word", "3"], "z": [1, None]})))
    assert info["column_dtypes"]["z"] == "float64"
    assert info["unique_vals_per_col"] == {"x": ["a", "b"], "z": [1.0, None]}


@pytest.mark.parametrize(
    ("cells", "kind", "stored"),
    [
        ([1, 2], "INTEGER", [1, 2]),
        ([1, None], "REAL", [1, None]),
        ([1, 2.5], "REAL", [1, 2.5]),
        (["7", " 8 "], "INTEGER", [7, 8]),
        (["7", "8.5"], "REAL", [7.0, 8.5]),
        (["7", None], "REAL", [7.0, None]),
        (["1,409", "8"], "TEXT", ["1,409", "8"]),
        (["", "8"], "TEXT", ["", "8"]),
        (["nan", "1"], "TEXT", ["nan", "1"]),
        ([None, None], "TEXT", [None, None]),
    ],
)
def test_how_columns_are_stored(cells: list[Cell], kind: str, stored: list[Cell]) -> None:
    assert storage(table({"a": cells}), 0) == (kind, stored)


NUMBERS_AS_TEXT = st.sampled_from(["7", "12.5", "-3", "7.0", " 8", "1,409", "$5", "", "abc", "1e3"])
CELLS = st.one_of(
    st.none(),
    st.integers(-10_000, 10_000),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from(["net_sales", "$1,234", "$(6)", "1,409", "", "7", "12.5", "n/a", "5.0%"]),
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(st.sampled_from(["net_sales", "tax", "total"]), CELLS, CELLS), min_size=1, max_size=6))
def test_the_answer_is_that_of_the_pandas_code_it_stands_for(rows: list[tuple[Cell, ...]]) -> None:
    pandas = pytest.importorskip("pandas")
    mine = table(dict(zip(("line_item", "2024", "2023"), map(list, zip(*rows, strict=True)), strict=True)))
    info = json.loads(table_info(mine))
    frame = pandas.DataFrame([dict(zip(mine.columns, row, strict=True)) for row in rows])
    for column in mine.columns:
        assert info["column_dtypes"][column] == str(frame[column].dtype).replace("str", "object")
    expected: dict[str, list[Any]] = {}
    for place, column in enumerate(mine.columns):
        cells = ["".join(filter(str.isalnum, str(cell))) for cell in frame[column].tolist()[1:]]
        if place == 0 or not all(not cell or cell.isnumeric() for cell in cells):
            values = list(frame[column].unique())
            expected[column] = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
    assert info["unique_vals_per_col"] == expected


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(
        st.sampled_from(["7", "12.5", "-3", "7.0", " 8", "1,409", "$5", "", "abc", "1e3"]), min_size=1, max_size=5
    )
)
def test_text_that_pandas_reads_as_numbers_is_stored_as_numbers(cells: list[str]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_json(io.StringIO(json.dumps([{"a": cell} for cell in cells])))
    kind, _ = storage(table({"a": list(cells)}), 0)
    assert kind == {"int64": "INTEGER", "float64": "REAL"}.get(str(frame["a"].dtype), "TEXT")
