"""What OpenEnv's server replies about a table: an empty one, and columns of texts and numbers under pandas 2 and 3.

The expected replies were taken from `pandas.DataFrame` 2.3.3 and 3.1.1, and from OpenEnv's server for the empty table.
"""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path

import pytest

from finqa_cli.data.check_data import layout_facts
from finqa_cli.data.dataset import DataSet, Question
from finqa_cli.data.openenv_layout.layout import TABLES_FILE, write_layout
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.openenv_layout.table_files import make_table, read_tables
from finqa_cli.data.snapshots.compile import compile_snapshot
from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions, ToolService
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import Pandas, SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import NO_FILTER, NO_STAR

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "snorkel" / "input_companies.zip"
EMPTY = {"description": "commercial_paper", "column_names": [], "unique_vals_per_col": {}, "company": "acme"}
MIXED = [
    {"item": "sales", "note": "1", "mixed": "$1", "none": None, "count": 1, "share": 1},
    {"item": None, "note": "2", "mixed": 2, "none": None, "count": 2, "share": None},
]
BY_PANDAS = {
    2: (
        '{"column_dtypes": {"item": "object","note": "object","mixed": "object","none": "object","count": "int64",'
        '"share": "float64"},"unique_vals_per_col": {"item": ["sales",null],"none": [null],"share": [1.0,null]}}'
    ),
    3: (
        '{"column_dtypes": {"item": "str","note": "str","mixed": "object","none": "object","count": "int64",'
        '"share": "float64"},"unique_vals_per_col": {"item": ["sales",NaN],"none": [null],"share": [1.0,null]}}'
    ),
}


def data_set() -> DataSet:
    tables = (
        make_table("f", "acme", "empty", {}, EMPTY),
        make_table("f", "acme", "mixed", MIXED, {}),
        make_table("f", "acme", "plain", [{"a": "x", "b": 1}], {}),
    )
    asked = Question(
        id="q",
        company="acme",
        question="How many?",
        user_query="How many?",
        answer="1",
        split="test",
        table_name="mixed",
    )
    return DataSet(tables=tables, questions=(asked,), source="s", licence="l", evaluation_only=False)


def service(folder: Path, **options: object) -> ToolService:
    compile_snapshot(data_set(), folder)
    return ToolService(SnapshotReader(folder), ServerOptions(**options))  # type: ignore[arg-type]


def ask(tools: ToolService, tool: str, **arguments: str) -> str:
    return asyncio.run(tools.call(tool, {"company_name": "acme", **arguments}))


@pytest.mark.parametrize("pandas", [2, 3])
@pytest.mark.parametrize("hints", [False, True])
@pytest.mark.parametrize("joins", [False, True])
def test_an_empty_table_is_listed_and_described_and_cannot_be_read(
    tmp_path: Path, pandas: Pandas, hints: bool, joins: bool
) -> None:
    tools = service(tmp_path, pandas=pandas, hints=hints, joins=joins)
    assert json.loads(ask(tools, "get_descriptions")) == ["empty", "mixed", "plain"]
    assert ask(tools, "get_table_info", table_name="empty") == (
        '{"description": "commercial_paper","column_names": [],"unique_vals_per_col": {},"company": "acme",'
        '"column_dtypes": {}}'
    )
    query = {"table_name": "empty.json", "query": "SELECT a FROM empty WHERE a = 1"}
    assert ask(tools, "sql_query", **query) == 'Error executing query: near ")": syntax error'
    long = query | {"query": query["query"] + " " * 2000}
    assert ask(tools, "sql_query", **long) == 'Error executing query: near ")": syntax error'
    assert ask(tools, "sql_query", **query | {"query": "SELECT * FROM empty"}).startswith(NO_STAR)
    assert ask(tools, "sql_query", **query | {"query": "SELECT a FROM empty"}) == NO_FILTER
    beside = ask(tools, "sql_query", table_name="plain", query="SELECT name FROM sqlite_master WHERE type = 'table'")
    assert '"empty"' not in beside and '"plain"' in beside


@pytest.mark.parametrize("pandas", [2, 3])
def test_table_info_is_that_of_the_chosen_pandas(tmp_path: Path, pandas: Pandas) -> None:
    assert ask(service(tmp_path, pandas=pandas), "get_table_info", table_name="mixed") == BY_PANDAS[pandas]


def test_an_empty_table_survives_the_data_folder_and_is_reported(tmp_path: Path) -> None:
    write_layout(data_set(), tmp_path)
    assert {str(table) for table in read_layout(tmp_path).tables} == {str(table) for table in data_set().tables}
    _, problems, _, findings = layout_facts(tmp_path)
    assert not problems and [one.code for one in findings] == ["empty_table", "mixed_column"]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published tables are not here")
def test_all_published_tables_are_read_and_served(tmp_path: Path) -> None:
    with zipfile.ZipFile(PUBLISHED) as archive:
        archive.extractall(tmp_path)
    tables, problems = read_tables(tmp_path)
    assert (len(tables), problems, sum(not table.columns for table in tables)) == (783, [], 137)
    question = data_set().questions[0]
    served = DataSet(tables=tuple(tables), questions=(question,), source="s", licence="l", evaluation_only=True)
    (tmp_path / "compiled").mkdir()
    compile_snapshot(served, tmp_path / "compiled")
    reader = SnapshotReader(tmp_path / "compiled")
    published = json.loads((tmp_path / TABLES_FILE).read_text())
    assert len(reader.companies()) == 20
    for company in reader.companies():
        names = [path.stem for path in (tmp_path / "input_companies" / company).glob("*.json")]
        assert set(reader.tables(company) or {}) == set(names)
        for name in names:
            about = {key: value for key, value in published[f"{company}/{name}"].items() if key != "table"}
            info = json.loads(reader.info(company, name, 3))
            assert list(info) == [*about, "column_dtypes"]
            assert list(info["column_dtypes"]) == about["column_names"]
