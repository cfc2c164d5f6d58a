"""The data of the environment benchmark: as many companies, tables and questions as OpenEnv's FinQA data has."""

from __future__ import annotations

import random

from finqa_cli.data.dataset import DataSet, Question, Table

COMPANIES, TABLES, ROWS, QUESTIONS = 20, 30, 12, 300
YEARS = ("2024", "2023", "2022", "2021")


def benchmark_data(seed: int = 0) -> DataSet:
    """20 companies of 30 tables of 12 rows and 4 years, cells as filings write them, and 300 questions with a query."""
    rng = random.Random(seed)
    places = [(company, table) for company in range(COMPANIES) for table in range(TABLES)]
    tables = tuple(_table(f"company_{company}", f"us_gaap_Topic{table}TextBlock", rng) for company, table in places)
    questions = tuple(_question(number, rng.choice(tables), rng) for number in range(QUESTIONS))
    return DataSet(tables=tables, questions=questions, source="benchmark", licence="CC0-1.0")


def _table(company: str, name: str, rng: random.Random) -> Table:
    rows = tuple((f"line_item_{row}", *(f"${rng.randint(1000, 999_999):,}" for _ in YEARS)) for row in range(ROWS))
    description = {"title": name, "company": company, "description": "Figures in millions, as reported. " * 4}
    return Table(company=company, name=name, columns=("line_item", *YEARS), rows=rows, metadata=description)


def _question(number: int, table: Table, rng: random.Random) -> Question:
    row, year = rng.choice(table.rows), rng.randrange(len(YEARS))
    text = f"What was {row[0]} of {table.name} in {YEARS[year]}?"
    return Question(
        id=f"question_{number}",
        company=table.company,
        question=text,
        user_query=text,
        answer=f"\\boxed{{{str(row[1 + year]).removeprefix('$')}}}",
        split="test",
        type="lookup",
        explanation="",
        table_name=table.name,
        gold_sql=f"SELECT \"{YEARS[year]}\" FROM {table.name} WHERE line_item = '{row[0]}'",
    )
