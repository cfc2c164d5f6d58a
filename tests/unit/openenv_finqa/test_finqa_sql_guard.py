"""SQL attacks on the guarded runner, in process."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest
from fixtures.tiny_snapshot import CANARY, write_tiny_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_plugins.openenv_finqa.server.snapshot import Snapshot, SnapshotError
from finqa_plugins.openenv_finqa.server.sql import MAX_BYTES, MAX_ROWS, NO_FILTER, NO_STAR, QueryRunner, refusal

TABLE = "income_statement"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_snapshot(tmp_path_factory.mktemp("sql")).path


@pytest.fixture(scope="module")
def runner(folder: Path) -> QueryRunner:
    return QueryRunner(Snapshot(folder))


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


LABELS = ", ".join(f"t{place}.line_item || {place}" for place in range(18))
WORDS = (
    f"SELECT FROM WHERE {TABLE} line_item \"2024\" ( ) , * 1 'a' JOIN ON = UNION ORDER GROUP BY max( CASE WHEN END"
    " LIKE NULL ; -- /* WITH"
).split()
ATTACKS = [
    f"DELETE FROM {TABLE} WHERE 1",
    f"UPDATE {TABLE} SET line_item='x' WHERE 1",
    f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE 1",
    f"DROP TABLE {TABLE} /* WHERE */",
    "CREATE TABLE x AS SELECT 1 WHERE 1",
    "CREATE TEMP TABLE x AS SELECT 1 WHERE 1",
    f"CREATE TRIGGER t AFTER INSERT ON {TABLE} WHEN 1 IN (1) BEGIN SELECT 1; END",
    "ATTACH DATABASE '/tmp/finqa_attack.db' AS x /* WHERE */",
    "ATTACH DATABASE 'tables.sqlite' AS x /* WHERE */",
    "VACUUM INTO '/tmp/finqa_attack.db' /* WHERE */",
    "PRAGMA writable_schema=ON /* WHERE */",
    "PRAGMA hard_heap_limit=0 /* WHERE */",
    "SELECT * FROM pragma_database_list WHERE 1",
    "SELECT load_extension('/tmp/x.so') WHERE 1",
    "SELECT readfile('/etc/passwd') WHERE 1",
    "SELECT writefile('/tmp/finqa_attack.db', 'x') WHERE 1",
    "SELECT edit('x') WHERE 1",
    f"SELECT 1 FROM {TABLE} WHERE 1; DELETE FROM {TABLE} WHERE 1",
    "SELECT company FROM catalog WHERE 1",
    "SELECT line_item FROM balance_sheet WHERE 1",
    "SELECT answer FROM truth WHERE 1",
    "SELECT value FROM json_each('[1]') WHERE 1",
    "SELECT random() WHERE 1",
    "BEGIN EXCLUSIVE /* WHERE */",
    "REINDEX /* WHERE */",
    "ANALYZE /* WHERE */",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(x) FROM c WHERE 1",
    f"SELECT count(1) FROM {numbers(40)} WHERE 1",
    f"SELECT group_concat(t0.line_item) FROM {numbers(18)} WHERE 1",
    f"SELECT t0.line_item FROM {numbers(18)} WHERE 1 ORDER BY t3.line_item, t1.line_item",
    f"SELECT DISTINCT {LABELS} FROM {numbers(18)} WHERE 1 LIMIT 1 OFFSET 99999999",
    "SELECT printf('%.*c', 1000000000, 'x') WHERE 1",
    "SELECT format('%999999999d', 1) WHERE 1",
    "SELECT zeroblob(2000000000) WHERE 1",
    "SELECT hex(zeroblob(20000)) WHERE 1",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000 + " WHERE 1",
    "SELECT 1 WHERE " + " AND ".join(["1"] * 2000),
    " UNION ALL ".join(["SELECT 1 WHERE 1"] * 400),
    "SELECT a\x00b WHERE 1",
    "SELECT x'ff' WHERE 1",
    "/* WHERE */",
    "SELECT ? WHERE 1",
]
SLOW_FUNCTIONS = [
    "SELECT " + "+".join(["instr(hex(zeroblob(9000)),hex(zeroblob(4000))||'b')"] * 60) + " WHERE 1",
    "SELECT hex(zeroblob(9000)) LIKE '" + "%0" * 90 + "b' WHERE 1",
    "SELECT hex(zeroblob(9000)) GLOB '" + "*0" * 90 + "b' WHERE 1",
    "SELECT " + "+".join(["length(replace(hex(zeroblob(9000)),'0','b'))"] * 150) + " WHERE 1",
]


@pytest.mark.parametrize("query", ATTACKS)
def test_attacks_fail_in_time_and_change_nothing(runner: QueryRunner, folder: Path, query: str) -> None:
    before = (folder / "tables.sqlite").stat(), sorted(folder.iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    reply = runner.run("acme", TABLE, query)
    assert time.perf_counter() - began < 2.0
    assert reply.startswith("Error executing query: ") or reply == "[]" or query.startswith(("SELECT 1 WHERE", "("))
    assert CANARY not in reply
    assert ((folder / "tables.sqlite").stat(), sorted(folder.iterdir())) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 96 * 1024
    assert not Path("/tmp/finqa_attack.db").exists()
    fine = f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'"
    assert runner.run("acme", TABLE, fine) == '[{"2024":6118}]'


@pytest.mark.parametrize("query", SLOW_FUNCTIONS)
def test_functions_that_no_deadline_interrupts_are_short(runner: QueryRunner, query: str) -> None:
    began = time.perf_counter()
    runner.run("acme", TABLE, query)
    assert time.perf_counter() - began < 2.0


def test_only_the_named_table_of_the_named_company_is_visible(runner: QueryRunner) -> None:
    assert runner.run("globex", TABLE, f'SELECT "2024" FROM {TABLE} WHERE 1') == '[{"2024":"$(6)"}]'
    assert "no such table" in runner.run("acme", "balance_sheet", f"SELECT 1 FROM {TABLE} WHERE 1")
    names = json.loads(runner.run("acme", TABLE, "SELECT name FROM sqlite_master WHERE 1"))
    assert names == [{"name": TABLE}]


@pytest.mark.parametrize(("company", "table"), [("..", "x"), ("acme", "../../etc/passwd"), ("", ""), ("acme", "nope")])
def test_unknown_tables_leak_no_path(runner: QueryRunner, folder: Path, company: str, table: str) -> None:
    reply = runner.run(company, table, "SELECT 1 WHERE 1")
    assert reply == f"Error: Table file not found for '{company}/{table}'"
    assert str(folder) not in reply


def test_long_replies_are_cut_and_marked(runner: QueryRunner) -> None:
    many = runner.run("acme", TABLE, f"SELECT t0.line_item FROM {numbers(6)} WHERE 1")
    assert many.endswith(f"(cut after {MAX_ROWS} rows: a reply is at most {MAX_ROWS} rows)")
    assert len(json.loads(many[: many.index("] (") + 1])) == MAX_ROWS
    wide = runner.run("acme", TABLE, f"SELECT hex(zeroblob(4500)) x FROM {TABLE} WHERE 1")
    assert wide.endswith(f"(cut after 1 rows: a reply is at most {MAX_BYTES} bytes)")
    assert len(wide) < MAX_BYTES + 100


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=60))
def test_any_text_gets_a_reply(runner: QueryRunner, query: str) -> None:
    reply = runner.run("acme", TABLE, query)
    assert reply.startswith(("Error executing query: ", "["))


@pytest.mark.parametrize("damaged", ["tables.sqlite", "tasks.jsonl", "truth.jsonl"])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damaged: str) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    (tmp_path / damaged).write_text("{broken", encoding="utf-8")
    with pytest.raises(SnapshotError, match="not a readable snapshot"):
        Snapshot(snapshot.path)
