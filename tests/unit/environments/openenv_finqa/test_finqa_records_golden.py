"""Rows as `pandas.DataFrame.to_json(orient="records")` writes them: recorded, so that pandas need not be there."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from finqa_plugins.environments.openenv_finqa.server.sql_execution import records_json

GOLDEN = {
    "SELECT 1 a, 2.5 b, 'x' c, NULL d": '[{"a":1,"b":2.5,"c":"x","d":null}]',
    "SELECT 5.0 a": '[{"a":5.0}]',
    "SELECT 5 a UNION ALL SELECT NULL": '[{"a":5.0},{"a":null}]',
    "SELECT 5 a UNION ALL SELECT 0.5": '[{"a":5.0},{"a":0.5}]',
    "SELECT 5 a UNION ALL SELECT 'x'": '[{"a":5},{"a":"x"}]',
    "SELECT NULL a UNION ALL SELECT NULL": '[{"a":null},{"a":null}]',
    "SELECT 0.1 + 0.2 a, 1.0 / 3 b, 2.0 / 3 c": '[{"a":0.3,"b":0.3333333333,"c":0.6666666667}]',
    "SELECT 1e15 a, 123456789.123456789 b": '[{"a":1000000000000000.0,"b":123456789.123456791}]',
    "SELECT 1e16 a": '[{"a":10000000000000000.0}]',
    "SELECT 1.5e16 a, 1e300 b": '[{"a":1.5e+16,"b":1e+300}]',
    "SELECT 1e-10 a, 1e-11 b, 1e-16 c, -1.5 d": '[{"a":0.0000000001,"b":0.0,"c":1e-16,"d":-1.5}]',
    "SELECT 9223372036854775807 a, -9223372036854775808 b": '[{"a":9223372036854775807,"b":-9223372036854775808}]',
    "SELECT 1e999 a, 0.0 b": '[{"a":null,"b":0.0}]',
    "SELECT 'a/b' a, '\"\\' b": '[{"a":"a\\/b","b":"\\"\\\\"}]',
    "SELECT 'é' a, '😀' b, '\u2028' c": '[{"a":"\\u00e9","b":"\\ud83d\\ude00","c":"\\u2028"}]',
    "SELECT 'é' \"é/\"": '[{"\\u00e9\\/":"\\u00e9"}]',
    "SELECT char(1) a, char(9) b, char(10) c, char(127) d": '[{"a":"\\u0001","b":"\\t","c":"\\n","d":"\x7f"}]',
    "SELECT '<a&b>' a": '[{"a":"<a&b>"}]',
    "SELECT x'6162' a": '[{"a":"ab"}]',
    "SELECT 1 a WHERE 0": "[]",
}


@pytest.mark.parametrize("query", GOLDEN)
def test_as_recorded(query: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        cursor = connection.execute(query)
        columns = [column[0] for column in cursor.description]
        assert "[" + ",".join(records_json(columns, cursor.fetchall())) + "]" == GOLDEN[query]


@pytest.mark.parametrize("query", GOLDEN)
def test_the_record_is_what_pandas_writes(query: str) -> None:
    pandas = pytest.importorskip("pandas")
    with closing(sqlite3.connect(":memory:")) as connection:
        assert pandas.read_sql_query(query, connection).to_json(orient="records") == GOLDEN[query]
