"""How an episode opens: what is asked for, the page, and the question."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.types import Message, Prompt

SYSTEM = """\
You are a financial analyst. Answer the question about a page of a company's annual report.

Reply with one JSON object and nothing else: {"answer": <number, "yes" or "no">, "program": "<calculation>"}

The program is a list of steps, separated by a comma and a space. Each step is operation(argument, argument):
- add(a, b), subtract(a, b), multiply(a, b), divide(a, b), exp(a, b) for a to the power of b
- greater(a, b): yes when a is greater than b, else no
- table_sum(row, none), table_average(row, none), table_max(row, none), table_min(row, none): over a row of the table, \
given by the text of its first cell
An argument is a number from the page, a constant such as const_2, const_100, const_1000 or const_m1 (minus one), or \
#0, #1, ... for the result of the first, second, ... step. The last step gives the answer.

Give changes and ratios as decimals: 5.2% is 0.052. Example: {"answer": 0.05085, "program": "subtract(1240, 1180), \
divide(#0, 1180)"}"""


def opening(text: str) -> Prompt:
    """The prompt of one task; it offers no tools.

    Args:
        text: Page and question, as `question_text` joins them.
    """
    return Prompt(messages=(Message(role="system", content=SYSTEM), Message(role="user", content=text)), tools=())


def page_text(before: str, table: Sequence[Sequence[str]], after: str) -> str:
    """A report page: text, table, text; the table as lines of cells between bars."""
    lines = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in table)
    return "\n\n".join(part for part in (before, f"Table:\n{lines}", after) if part)


def question_text(page: str, question: str) -> str:
    """The user message: the page, then the question."""
    return f"Context:\n{page}\n\nQuestion: {question}"
