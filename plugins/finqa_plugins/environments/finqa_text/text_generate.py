"""The embedded tasks: invented pages with questions, programs and truths, from a seed."""

from __future__ import annotations

import hashlib
import json
import random

from finqa_cli.grading.programs import execute, parse
from finqa_cli.types import DataInfo
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.pages import Page, invent_page, tickers
from finqa_plugins.environments.finqa_text.text_prompt import page_text, question_text
from finqa_plugins.environments.finqa_text.text_questions import questions
from finqa_plugins.environments.finqa_text.text_rows import Row, kind_of
from finqa_plugins.environments.finqa_text.text_splits import TextData, divide

SHARES = {"dev": 0.15, "test": 0.15}


def generate(config: FinQATextConfig) -> TextData:
    """The embedded tasks, divided by company; the same for the same options.

    Raises:
        ProgramError: A program that was written here has no result: a bug.
    """
    rng = random.Random(f"finqa-text:{config.seed}")
    rows = []
    for ticker in tickers(config.companies, rng):
        # A generator of its own: asking for more companies or questions leaves the others as they are.
        own = random.Random(f"finqa-text:{config.seed}:{ticker}")
        page = invent_page(ticker, own)
        asked = questions(page, config.questions, own)
        rows += [_row(page, number, *one) for number, one in enumerate(asked, start=1)]
    content = json.dumps([[row.id, row.text, row.program, row.truth] for row in rows])
    digest = f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
    return TextData(info=DataInfo(name="embedded", digest=digest), rows=divide(rows, SHARES, config.seed))


def _row(page: Page, number: int, question: str, program: str) -> Row:
    text = question_text(page_text(page.before, page.table, page.after), question)
    read = parse(program)
    return Row(
        id=f"{page.file}-{number}",
        company=page.ticker,
        question=question,
        text=text,
        truth=execute(read, page.table),
        program=program,
        table=page.table,
        kind=kind_of(read.steps),
    )
