"""Replies to queries, in process: upstream's texts, limits, and what may be read."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server import sql_execution, sql_guard
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotError, SnapshotReader, quoted
from finqa_plugins.environments.openenv_finqa.server.sql_execution import (
    FULL,
    MAX_BYTES,
    MAX_ROWS,
    NO_FILTER,
    NO_STAR,
    QueryRunner,
    records_json,
    refusal,
)

TABLE = "income_statement"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_snapshot(tmp_path_factory.mktemp("sql")).path


@pytest.fixture(scope="module")
def runner(folder: Path) -> QueryRunner:
    return QueryRunner(SnapshotReader(folder))


def numbers(count: int) -> str:
    """A FROM clause of about 3**count rows."""
    return ", ".join(f"{TABLE} t{place}" for place in range(count))


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        (f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'", '[{"2024":6118}]'),
        (f"SELECT 2024 FROM {TABLE} WHERE line_item = 'total_revenues'", '[{"2024":2024}]'),
        (f"SELECT margin FROM {TABLE} WHERE 1=1", '[{"margin":0.25},{"margin":null},{"margin":0.1}]'),
        (f"SELECT line_item FROM {TABLE} WHERE line_item LIKE 'net/%'", '[{"line_item":"net\\/income"}]'),
        (f"SELECT 1 FROM {TABLE} WHERE 0", "[]"),
        ("SELECT printf('%.2f%%', 12.345) p, format('%,d', 6118) f WHERE 1", '[{"p":"12.35%","f":"6,118"}]'),
        (f'WITH w AS (SELECT "2023" x FROM {TABLE} WHERE "2023" > 100) SELECT max(x) FROM w', '[{"max(x)":5000}]'),
    ],
)
def test_queries_answer_as_upstream(runner: QueryRunner, query: str, reply: str) -> None:
    assert runner.run("acme", TABLE, query) == reply


HONEST = [
    # of a common table expression no column is read
    f'WITH a AS (SELECT 1 x) SELECT "2024" FROM {TABLE}, a WHERE margin > 0',
    f"WITH t AS (SELECT margin v FROM {TABLE}) SELECT (SELECT v FROM t) AS x FROM t WHERE 1",
    f"WITH a AS (SELECT 1 x), b AS (SELECT 2 y FROM a) SELECT count(*) AS n FROM b, {TABLE} WHERE 1",
    f"SELECT count(*) AS n FROM (SELECT 1 FROM {TABLE}) WHERE 1",
    # of a table in another case
    "SELECT count(*) AS n FROM Income_Statement WHERE 1",
    # JSON
    f"SELECT json_object('item', line_item, 'at', \"2024\") AS j FROM {TABLE} WHERE margin = 0.25",
    f"SELECT json_group_array(line_item) AS j FROM {TABLE} WHERE 1",
    f'SELECT json_group_object(line_item, "2024") AS j FROM {TABLE} WHERE 1',
    f'SELECT json_array_length(json_array("2024", "2023")) AS n FROM {TABLE} WHERE margin > 0.2',
    """SELECT json_extract('{"a": [1, 2]}', '$.a[1]') AS v, '{"a": 3}' -> 'a' AS w WHERE '{"a": 3}' ->> '$.a' = 3""",
    """SELECT json_set('{}', '$.a', 1) AS s, json_remove('[1, 2]', '$[0]') AS r, json_type('[]') AS t WHERE 1""",
    f"SELECT e.value AS v FROM {TABLE}, json_each('[1, 2]') e WHERE margin = 0.25",
    """SELECT fullkey AS k FROM json_tree('{"a": [1]}') WHERE atom IS NOT NULL""",
    # what describes the table
    f"SELECT name, type FROM pragma_table_info('{TABLE}') WHERE 1",
    f"SELECT count(*) AS n FROM pragma_table_info('{TABLE}') WHERE 1",
    "SELECT m.name AS t, p.name AS c FROM sqlite_master m, pragma_table_info(m.name) p WHERE p.pk = 0",
    f"SELECT name FROM PRAGMA_TABLE_XINFO('{TABLE}') WHERE hidden = 0",
    f"SELECT name FROM pragma_index_list('{TABLE}') WHERE 1",
    f"SELECT \"from\" FROM pragma_foreign_key_list('{TABLE}') WHERE 1",
    "SELECT name, ncol FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%'",
    f"PRAGMA table_info({TABLE}) -- WHERE",
]


@pytest.mark.parametrize("query", HONEST)
def test_what_plain_sqlite_answers_of_the_table_is_answered(runner: QueryRunner, folder: Path, query: str) -> None:
    image = SnapshotReader(folder).image("acme", TABLE)
    assert image is not None
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.execute(f"CREATE TABLE {TABLE} ({', '.join(f'{quoted(name)} {kind}' for name, kind in image.columns)})")
        plain.executemany(f"INSERT INTO {TABLE} VALUES ({', '.join('?' * len(image.columns))})", image.rows)
        cursor = plain.execute(query)
        names = [column[0] for column in cursor.description]
        expected = "[" + ",".join(records_json(names, cursor.fetchall())) + "]"
    for _ in range(2):  # the second time on a connection that has seen it
        assert runner.run("acme", TABLE, query) == expected
        assert runner.attempt("acme", TABLE, query, FULL) == expected


def test_too_many_steps_are_the_querys_own_doing(runner: QueryRunner) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(x) FROM c WHERE 1"
    for query in (f"SELECT count(1) FROM {numbers(18)} WHERE 1", endless):
        assert runner.run("acme", TABLE, query) == (
            "Error executing query: the query was stopped after 10,000,000 steps"
        )
        assert runner.attempt("acme", TABLE, query, dataclasses.replace(FULL, steps=1000)) is None


def test_how_many_steps_a_query_may_take_does_not_depend_on_the_time(
    runner: QueryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same verdict at any speed: a third of the rows of a product needs a third of the steps."""
    monkeypatch.setattr(sql_execution, "FULL", dataclasses.replace(FULL, steps=40_000, seconds=60.0))
    stopped = [
        "stopped" in runner.run("acme", TABLE, f"SELECT count(1) FROM {numbers(9)} WHERE t0.rowid > {least}")
        for least in (0, 0, 2, 2)
    ]
    assert stopped == [True, True, False, False]


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        ("SELECT * FROM t WHERE 1", NO_STAR),
        ("select * from t where 1", NO_STAR),
        ("SELECT a FROM t", NO_FILTER),
        ("SELECT a FROM t LIMIT 1", NO_FILTER),
        ("SELECT a FROM t ORDER BY a", NO_FILTER),
        ("SELECT [WHERE] FROM t", NO_FILTER),
        ("SELECT elsewhere FROM t", NO_FILTER),
        ("SELECT a FROM t\nWHERE\ta=1", ""),
        ("SELECT a FROM t WHERE a IS NULL", ""),
        ("SELECT CASE a WHEN 1 THEN 2 END FROM t", ""),
        ("SELECT  * FROM t WHERE 1", ""),
    ],
)
def test_what_is_refused_before_running(query: str, reply: str) -> None:
    assert refusal(query) == reply


def test_only_the_named_table_of_the_named_company_is_visible(runner: QueryRunner) -> None:
    assert runner.run("globex", TABLE, f'SELECT "2024" FROM {TABLE} WHERE 1') == '[{"2024":"$(6)"}]'
    assert "no such table" in runner.run("acme", "balance_sheet", f"SELECT 1 FROM {TABLE} WHERE 1")
    names = json.loads(runner.run("acme", TABLE, "SELECT name FROM sqlite_master WHERE 1"))
    assert names == [{"name": TABLE}]


def test_long_replies_are_cut_and_marked(runner: QueryRunner) -> None:
    many = runner.run("acme", TABLE, f"SELECT t0.line_item FROM {numbers(6)} WHERE 1")
    assert many.endswith(f"(cut after {MAX_ROWS} rows: a reply is at most {MAX_ROWS} rows)")
    assert len(json.loads(many[: many.index("] (") + 1])) == MAX_ROWS
    wide = runner.run("acme", TABLE, f"SELECT hex(zeroblob(4500)) x FROM {TABLE} WHERE 1")
    assert wide.endswith(f"(cut after 1 rows: a reply is at most {MAX_BYTES} bytes)")
    assert len(wide) < MAX_BYTES + 100


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        ("SELECT x FROM income_statement WHERE 1", "no such column: x"),
        ("SELECT 1 FROM y WHERE 1", "no such table: y"),
        ("SELEC 1 WHERE 1", 'near "SELEC": syntax error'),
        ("SELECT 1 WHERE 1; SELECT 2", "You can only execute one statement at a time."),
        ("SELECT a\x00b WHERE 1", "the query contains a null character"),
        ("DROP TABLE income_statement -- WHERE", "not authorized"),
    ],
)
def test_what_sqlite_says_is_reported_as_pandas_does(runner: QueryRunner, query: str, reply: str) -> None:
    expected = f"Error executing query: Execution failed on sql '{query}': {reply}"
    assert runner.run("acme", TABLE, query) == expected


def test_texts_of_errors_are_those_of_pandas(runner: QueryRunner) -> None:
    pandas = pytest.importorskip("pandas")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f'CREATE TABLE {TABLE} (line_item TEXT, "2024" INTEGER)')
        for query in (
            "SELECT x FROM income_statement WHERE 1",
            "SELECT 1 FROM y WHERE 1",
            "SELEC 1",
            "SELECT max( WHERE 1",
        ):
            with pytest.raises(pandas.errors.DatabaseError) as caught:
                pandas.read_sql_query(query, connection)
            assert runner.run("acme", TABLE, query) == f"Error executing query: {caught.value}"


def test_a_long_query_is_not_echoed_whole(runner: QueryRunner) -> None:
    reply = runner.run("acme", TABLE, "SELECT x FROM income_statement WHERE " + " " * 5000 + "1")
    assert reply.endswith("...': no such column: x")
    assert len(reply) < 1200


def test_a_quick_reply_is_the_same_reply(runner: QueryRunner) -> None:
    for query in (
        f'SELECT "2024" FROM {TABLE} WHERE 1',
        "SELECT x WHERE 1",
        "SELECT 1 a, 2 a WHERE 1",
        "PRAGMA x /* IN */",
    ):
        assert runner.run_quickly("acme", TABLE, query) == runner.run("acme", TABLE, query)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT count(1) FROM {numbers(18)} WHERE 1",
        f"SELECT count(DISTINCT t0.line_item || t1.line_item || t2.rowid) FROM {numbers(18)} WHERE 1",
        "WITH w AS (SELECT 1 WHERE 1) SELECT 1 FROM w",
        "SELECT 1 WHERE 1" + " " * 1000,
    ],
)
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_what_may_be_slow_is_left_to_another_thread(runner: QueryRunner, query: str) -> None:
    assert runner.run_quickly("acme", TABLE, query) is None


def test_time_in_which_the_machine_did_not_serve_us_is_not_the_querys(
    runner: QueryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late() -> sqlite3.Connection:
        time.sleep(0.5)
        return sqlite3.connect(":memory:")

    monkeypatch.setattr(sql_guard, "_plain_connection", late)
    query = f"SELECT instr(line_item, 'net/') AS at FROM {TABLE} WHERE \"2024\" = 6118 OR line_item = 'net/income'"
    assert runner.run("acme", TABLE, query) == '[{"at":0},{"at":1}]'
    monkeypatch.setattr(sql_execution, "FULL", dataclasses.replace(FULL, seconds=0.4))
    assert runner.run("acme", TABLE, query) == '[{"at":0},{"at":1}]'


@pytest.mark.parametrize("damaged", ["tables.sqlite", "tasks.jsonl", "truth.jsonl"])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damaged: str) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    (tmp_path / damaged).write_text("{broken", encoding="utf-8")
    with pytest.raises(SnapshotError, match="not a readable snapshot"):
        SnapshotReader(snapshot.path)
