"""How an episode opens: short, because a small policy reads it every time."""

from __future__ import annotations

from finqa_cli.types import Message, Prompt, ToolSpec
from finqa_plugins.environments.openenv_finqa.finqa_tools import TOOLS

SYSTEM = (
    "You are a financial analyst. Answer the question from the company's tables: find the table, look at it, "
    "query it with SQL, compute, then call submit_answer once. Submit the number alone, without units or words. "
    "Percentages, margins and growth rates are decimal ratios: 5.2% is 0.052. For several years submit "
    '"year: value, year: value". For yes-or-no questions submit Yes or No.'
)

TOOL_SPECS = tuple(
    ToolSpec(name=tool.name, description=tool.description, parameters=tool.schema()) for tool in TOOLS.values()
)


def opening(company: str, question: str) -> Prompt:
    """The prompt of one task."""
    user = f"Company: {company}\nQuestion: {question}"
    messages = (Message(role="system", content=SYSTEM), Message(role="user", content=user))
    return Prompt(messages=messages, tools=TOOL_SPECS)
