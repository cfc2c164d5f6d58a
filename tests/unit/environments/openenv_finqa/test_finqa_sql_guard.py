"""Replies to queries, in process: upstream's texts, limits, and what may be read."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server import sql_execution, sql_guard
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotError, SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import (
    MAX_BYTES,
    MAX_ROWS,
    NO_FILTER,
    NO_STAR,
    QueryRunner,
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
    monkeypatch.setattr(sql_execution, "DEADLINE_S", 0.4)
    assert runner.run("acme", TABLE, query) == '[{"at":0},{"at":1}]'


@pytest.mark.parametrize("damaged", ["tables.sqlite", "tasks.jsonl", "truth.jsonl"])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damaged: str) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    (tmp_path / damaged).write_text("{broken", encoding="utf-8")
    with pytest.raises(SnapshotError, match="not a readable snapshot"):
        SnapshotReader(snapshot.path)
