"""Joins within a company: off by default, and never beyond the company."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.hostile_sql import ATTACKS
from fixtures.tiny_snapshot import CANARY, write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import QueryRunner

JOIN = (
    'SELECT i."2024" revenues, b."2024" assets FROM income_statement i JOIN balance_sheet b'
    " WHERE i.line_item = 'total_revenues' AND b.line_item = 'total_assets'"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_snapshot(tmp_path_factory.mktemp("joins")).path


def test_tables_of_a_company_can_be_joined(folder: Path) -> None:
    joins = QueryRunner(SnapshotReader(folder), joins=True)
    for table in ("income_statement", "balance_sheet"):
        assert joins.run("acme", table, JOIN) == '[{"revenues":6118,"assets":9000}]'
    names = json.loads(joins.run("acme", "balance_sheet", "SELECT name FROM sqlite_master WHERE 1"))
    assert [row["name"] for row in names] == ["balance_sheet", "income_statement"]


def test_off_by_default(folder: Path) -> None:
    assert "no such table: balance_sheet" in QueryRunner(SnapshotReader(folder)).run("acme", "income_statement", JOIN)


def test_other_companies_stay_out_of_reach(folder: Path) -> None:
    joins = QueryRunner(SnapshotReader(folder), joins=True)
    assert joins.run("globex", "income_statement", 'SELECT "2024" FROM income_statement WHERE 1') == '[{"2024":"$(6)"}]'
    assert "no such table: balance_sheet" in joins.run("globex", "income_statement", JOIN)
    for name in (
        "other-company",
        "physical-name",
        "catalog",
        "truth",
        "temp-master",
        "attach-uri",
        "with-insert",
        "drop-table",
    ):
        reply = joins.run("acme", "income_statement", ATTACKS[name])
        assert reply.startswith("Error executing query: ")
        assert CANARY not in reply


def test_an_unknown_table_gets_the_names_of_the_company(folder: Path) -> None:
    joins = QueryRunner(SnapshotReader(folder), joins=True, hints=True)
    reply = joins.run("acme", "income_statement", "SELECT 1 FROM balance WHERE 1")
    assert reply.endswith('\nHint: a query can read "balance_sheet".')


def test_tables_whose_names_differ_in_case_only_are_not_mixed_up(tmp_path: Path) -> None:
    folder = write_tiny_snapshot(tmp_path).path
    with closing(sqlite3.connect(folder / "tables.sqlite")) as database, database:
        database.execute("INSERT INTO catalog SELECT 'acme', 'Balance_Sheet', 't9', info FROM catalog LIMIT 1")
        database.execute("CREATE TABLE t9 (line_item TEXT)")
        database.execute("INSERT INTO t9 VALUES ('another')")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["tables.sqlite"] = hashlib.sha256((folder / "tables.sqlite").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    joins = QueryRunner(SnapshotReader(folder), joins=True)
    query = "SELECT line_item FROM balance_sheet WHERE 1"
    assert joins.run("acme", "Balance_Sheet", query) == '[{"line_item":"another"}]'
    assert joins.run("acme", "balance_sheet", query) == '[{"line_item":"total_assets"}]'
