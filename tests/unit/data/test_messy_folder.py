"""A folder as a newcomer has it: three companies, four tables each, every file in another form; one import suffices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.data.own_tables.import_options import ImportOptions
from finqa_cli.data.own_tables.tables_import import import_tables

openpyxl = pytest.importorskip("openpyxl", reason="needs finqa[tables]")

FILES: dict[str, str | bytes] = {
    "acme/income.csv": 'Acme Corp,,\n(in millions),,\nItem,2023,2022\nRevenue,"1,234","1,100"\nCost,(700),(650)\n',
    "acme/balance.csv": ',,2023,,,2022,\nCash,$,"1,050",,$,900,\nDebt,,(400,),,(380,)\n',
    "acme/cash_flow.json": '{"2023": {"Operating": 310, "Investing": -120}, '
    '"2022": {"Investing": -90, "Operating": 280}}',
    "acme/segments.csv": "Segment;Sales;Share\nNorth;1.234,5;60%\nSouth;823,0;40%\n",
    "byte/income.csv": "Item\t2023\t2022\nRevenue\t88\t70\nTax\t\u2014\t5\n".encode("utf-16"),
    "byte/balance.html": "<table><tr><td></td><td colspan=2>2023</td></tr>"
    "<tr><td>Cash</td><td>$</td><td>1,005</td></tr>"
    "<tr><td>Debt</td><td></td><td>(77)</td></tr></table>",
    "byte/staff.csv": 'Item,2023,2022\nHeads,"5,210 (1)","4,900"\n\n(1) Restated.\n',
    "byte/units.csv": "Caf\xe9,2023\nEspresso,12\nLatte,30\n".encode("cp1252"),
    "contoso/balance.csv": "Item|2023|2022\nCash|40|35\nDebt|(15|(12\n",
    "contoso/notes.jsonl": '{"Item": "Fee", "2023": "$1.5 million"}\n{"Item": "Fine", "2023": "$2.5 million"}\n',
    "contoso/ratios.csv": "Ratio,2023,2022\nMargin,12.5%,10%\nDebt to equity,0.4,0.5\n",
}
QUESTIONS = [
    ("acme", "income", "subtract(1234, 1100)", 134),
    ("acme", "balance", "SELECT \"2023\" FROM balance WHERE item = 'Debt'", -400),
    ("acme", "cash_flow", 'SELECT "2023" - "2022" FROM cash_flow WHERE item = \'Operating\'', 30),
    ("acme", "segments", "SELECT MAX(Sales) FROM segments", 1234.5),
    ("byte", "income", 'SELECT MAX("2023") FROM income', 88),
    ("byte", "balance", 'SELECT SUM("2023") FROM balance', 928),
    ("byte", "staff", "subtract(5210, 4900)", 310),
    ("byte", "units", 'SELECT SUM("2023") FROM units', 42),
    ("contoso", "income", 'SELECT SUM("Year ended June 30, 2023") FROM income', 534),
    ("contoso", "balance", 'SELECT SUM("2023") FROM balance', 25),
    ("contoso", "notes", 'SELECT MAX("2023") FROM notes', 2500000),
    ("contoso", "ratios", "SELECT \"2023\" FROM ratios WHERE Ratio = 'Margin'", 0.125),
]


def test_one_import_answers_every_question(tmp_path: Path) -> None:
    source = tmp_path / "tables"
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content.encode() if isinstance(content, str) else content)
    book = openpyxl.Workbook()
    rows = [["Statements of Income"], ["(in thousands)"], [], [None, "Year ended June 30,"], [None, 2023, 2022]]
    for cells in (*rows, ["Revenue", 1234, 1100], ["Cost", -700, -650]):
        book.active.append(cells)
    book.save(source / "contoso" / "income.xlsx")
    asked = [
        {"company": company, "table": table, "question": f"What is {number}?", "answer": answer,
         "sql" if "SELECT" in gold else "program": gold}
        for number, (company, table, gold, answer) in enumerate(QUESTIONS)
    ]  # fmt: skip
    (tmp_path / "questions.json").write_text(json.dumps(asked))
    report = import_tables(source, tmp_path / "questions.json", ImportOptions())
    assert len(report.report.dataset.tables) == 12 and not report.left_out and not report.unused
    assert report.experts == len(report.report.dataset.questions) == 12, "gold SQL and programs give the gold answers"
    assert {each.code for each in report.findings} <= {"lost_mark"}
