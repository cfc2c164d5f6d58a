"""Hints: only when asked for, only at the end of a reply, one at most."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions, ToolService
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader

TABLE = "income_statement"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToolService, ToolService]:
    """Without hints, and with."""
    snapshot = SnapshotReader(write_tiny_snapshot(tmp_path_factory.mktemp("hints")).path)
    return ToolService(snapshot, ServerOptions()), ToolService(snapshot, ServerOptions(hints=True))


async def hint(services: tuple[ToolService, ToolService], tool: str, **arguments: str) -> str:
    """The hint alone; the reply before it must be the reply without hints."""
    plain, hinted = [await service.call(tool, arguments) for service in services]
    assert "Hint: " not in plain
    assert hinted.startswith(plain)
    return hinted[len(plain) :].removeprefix("\nHint: ")


async def of_query(services: tuple[ToolService, ToolService], query: str, company: str = "acme") -> str:
    return await hint(services, "sql_query", company_name=company, table_name=TABLE, query=query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            f"SELECT 2024 FROM {TABLE} WHERE line_item = 'total_revenues'",
            '2024 without quotes is the number 2024; the column is "2024".',
        ),
        (
            f"SELECT line_item FROM {TABLE} WHERE 2023 > 100",
            '2023 without quotes is the number 2023; the column is "2023".',
        ),
        (
            f'SELECT "2022" FROM {TABLE} WHERE 1',
            '"2022" is no column, so it was taken as text; columns are "2024", "2023".',
        ),
        (
            f"SELECT revenue FROM {TABLE} WHERE 1",
            f'the columns of "{TABLE}" are "line_item", "2024", "2023", "margin".',
        ),
        (f"SELECT t.margins FROM {TABLE} t WHERE 1", 'columns with a name like that: "margin".'),
        ("SELECT line_item FROM income WHERE 1", f'a query can read "{TABLE}".'),
        ("SELECT line_item FROM data WHERE 1", f'a query can read "{TABLE}".'),
        (f"SELECT line_item FROM {TABLE}", "add a condition such as WHERE \"line_item\" = 'total_revenues'."),
        (f"SELECT * FROM {TABLE} WHERE 1", "name the columns that you need."),
        (
            f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenue'",
            "no row matches; no cell is 'total_revenue', but there is 'total_revenues'.",
        ),
        (f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'zzz'", "no row matches."),
    ],
)
async def test_common_mistakes(services: tuple[ToolService, ToolService], query: str, expected: str) -> None:
    assert await of_query(services, query) == expected


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'",
        f'SELECT "2024" - "2023" FROM {TABLE} WHERE line_item = \'total_revenues\'',
        f"SELECT '2024', \"2024\" -- 2024\n FROM {TABLE} WHERE 1 /* 2024",
        f'SELECT max("2024") m2024 FROM {TABLE} WHERE 1',
        "SELEC 1 WHERE 1",
        f"DELETE FROM {TABLE} WHERE 1",
    ],
)
async def test_no_hint_where_there_is_no_mistake_that_we_know(
    services: tuple[ToolService, ToolService], query: str
) -> None:
    assert await of_query(services, query) == ""


@pytest.mark.parametrize("expression", ['"2024" * 2', 'CAST("2024" AS REAL)', 'sum("2024")', '"2024" + 1'])
async def test_figures_in_text_cells(services: tuple[ToolService, ToolService], expression: str) -> None:
    told = await of_query(services, f"SELECT {expression} FROM {TABLE} WHERE 1", "globex")
    assert told.startswith("cells of \"2024\" such as '$(6)' are text, not numbers")


@pytest.mark.parametrize("expression", ['"2024"', 'count("2024")', "CAST(REPLACE(\"2024\", '$', '') AS REAL)", "1 + 1"])
async def test_text_cells_that_are_only_read(services: tuple[ToolService, ToolService], expression: str) -> None:
    assert await of_query(services, f"SELECT {expression} FROM {TABLE} WHERE 1", "globex") == ""


async def test_names_that_do_not_exist(services: tuple[ToolService, ToolService]) -> None:
    names = {"company_name": "acme", "table_name": "income_statements"}
    assert await hint(services, "get_table_info", **names) == f"tables with a name like that: {TABLE}."
    assert (
        await hint(services, "sql_query", **names, query="SELECT 1 WHERE 1")
        == f"tables with a name like that: {TABLE}."
    )
    names["company_name"] = "Acme"
    assert await hint(services, "get_descriptions", company_name="Acme") == "companies with a name like that: acme."
    assert (
        await hint(services, "sql_query", **names, query="SELECT 1 WHERE 1") == "companies with a name like that: acme."
    )
    assert await hint(services, "get_descriptions", company_name="zzz") == ""


async def test_columns_of_one_name_are_told_apart_with_as(services: tuple[ToolService, ToolService]) -> None:
    names = {"company_name": "acme", "table_name": TABLE}
    assert "with AS" in await hint(services, "sql_query", **names, query="SELECT 1 AS a, 2 AS a WHERE 1")


async def test_hints_are_quick_on_hostile_text(services: tuple[ToolService, ToolService]) -> None:
    for text in (
        "'" * 9000,
        '"' * 9000,
        "/*" * 4500,
        "[" * 9000,
        "(" * 9000,
        "2024 " * 1900,
        " '" * 4500,
        "max " * 2000,
    ):
        for query in (f"SELECT 1 WHERE 1 {text}", f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'x' -- {text}"):
            reply = await services[1].call("sql_query", {"company_name": "acme", "table_name": TABLE, "query": query})
            assert len(reply) < 3000


def test_hints_are_off_by_default(tmp_path: Path) -> None:
    assert ServerOptions().hints is False
