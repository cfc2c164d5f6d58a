"""Rows as pandas writes them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finqa_plugins.environments.openenv_finqa.server.sql_execution import records_json
from finqa_plugins.environments.openenv_finqa.server.sql_guard import Cell

pandas = pytest.importorskip("pandas")

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=-1e6, max_value=1e6),
    st.decimals(min_value=-10_000, max_value=10_000, places=3).map(float),
)
INTEGERS = st.integers(min_value=-(2**53), max_value=2**53)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
COLUMN = st.sampled_from([NUMBERS, INTEGERS, TEXTS]).flatmap(
    lambda cells: st.lists(st.one_of(st.none(), cells), min_size=1, max_size=4)
)


def ours(column: list[Cell]) -> str:
    return "[" + ",".join(records_json(["a/b"], [(cell,) for cell in column])) + "]"


@given(COLUMN)
@example([0.1 + 0.2])
@example([1e16, 1e-16, -1e15, 123456789.123456789])
@example([0.99999999999, 0.00000000005, 0.00000000015])
@example([5, None])
@example([True and 2024.0])
@example(['<a href="x">&</a>\x00\x7f\u2028', "\U0001f600"])
def test_a_column_reads_as_pandas_writes_it(column: list[Cell]) -> None:
    frame = pandas.DataFrame.from_records([(cell,) for cell in column], columns=["a/b"], coerce_float=True)
    assert ours(column) == frame.to_json(orient="records")


def test_mixed_columns_keep_their_kinds() -> None:
    assert records_json(["n", "t"], [(1, "x"), ("$(6)", None)]) == ['{"n":1,"t":"x"}', '{"n":"$(6)","t":null}']


def test_repeated_columns_are_refused_as_pandas_does() -> None:
    with pytest.raises(ValueError, match="columns must be unique"):
        records_json(["a", "a"], [(1, 2)])


def test_infinity_is_null() -> None:
    assert records_json(["a"], [(float("inf"),)]) == ['{"a":null}']
