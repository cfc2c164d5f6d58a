"""The four tools of the environment, in one table that the server, the client and the prompt share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

SUBMIT = "submit_answer"
_COMPANY = "The name of the company"
_TABLE = "The name of the table"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """A tool whose arguments are strings, all required.

    Attributes:
        arguments: Description by name, in the order in which a model should write them.
        limits: Longest accepted argument in characters, by name.
    """

    name: str
    description: str
    arguments: Mapping[str, str]
    limits: Mapping[str, int]

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, as FastMCP derives it from the signature."""
        properties = {name: {"type": "string", "description": text} for name, text in self.arguments.items()}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            "required": list(properties),
        }


TOOLS: Mapping[str, ServedTool] = {
    tool.name: tool
    for tool in (
        ServedTool(
            name="get_descriptions",
            description="List the tables of a company.",
            arguments={"company_name": _COMPANY},
            limits={"company_name": 256},
        ),
        ServedTool(
            name="get_table_info",
            description="Describe a table: columns, types, row labels.",
            arguments={"company_name": _COMPANY, "table_name": _TABLE},
            limits={"company_name": 256, "table_name": 256},
        ),
        ServedTool(
            name="sql_query",
            description="Run one SQLite SELECT on a table. Needs a filter such as WHERE; SELECT * is not allowed.",
            arguments={"company_name": _COMPANY, "table_name": _TABLE, "query": "SELECT ... FROM table_name WHERE ..."},
            limits={"company_name": 256, "table_name": 256, "query": 10_000},
        ),
        ServedTool(
            name=SUBMIT,
            description="Submit the final answer and end the episode.",
            arguments={"answer": "The final answer"},
            limits={"answer": 4096},
        ),
    )
}


FORM = (
    "one number with its sign and unit (1,234.5 or -5.2% or $3.412 billion), yes or no, one name (Alphabet Inc.), or a "
    "list of these with labels (2022: 5; 2023: 6)"
)
"""What an answer is, for graders that ask again."""
ASK_AGAIN = frozenset({"strict-3"})
"""Graders under which an unreadable answer is returned to the policy."""
ASKED_AGAIN = "Error: The answer was not accepted."
"""Beginning of the reply to such an answer."""


def served_tools(grader: str) -> Mapping[str, ServedTool]:
    """Return the tools by name; under a grader that asks again, `submit_answer` says what an answer is."""
    if grader not in ASK_AGAIN:
        return TOOLS
    submit = replace(
        TOOLS[SUBMIT],
        description=f"Submit the final answer and end the episode. It is exactly one value: {FORM}.",
        arguments={"answer": "The value alone"},
    )
    return {**TOOLS, SUBMIT: submit}


class InvalidArgumentsError(ValueError):
    """A call that its tool does not accept; the message is meant for the model."""


def validated(tool: ServedTool, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments as strings, in declared order. Numbers are accepted for `answer`: models often send them.

    Raises:
        InvalidArgumentsError: An argument is missing, unknown, not a text or too long.
    """
    if unknown := [name for name in arguments if name not in tool.arguments]:
        raise InvalidArgumentsError(f"Unexpected argument {unknown[0][:64]!r}. {_expected(tool)}")
    if missing := [name for name in tool.arguments if name not in arguments]:
        raise InvalidArgumentsError(f"Missing required argument {missing[0]!r}. {_expected(tool)}")
    return {name: _text(tool, name, arguments[name]) for name in tool.arguments}


def _text(tool: ServedTool, name: str, value: object) -> str:
    if tool.name == SUBMIT and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidArgumentsError(f"Argument {name!r} must be a string.")
    if len(value) > tool.limits[name]:
        raise InvalidArgumentsError(f"Argument {name!r} is longer than {tool.limits[name]} characters.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentsError(f"Argument {name!r} is not valid text (lone surrogate).") from None
    return value


def _expected(tool: ServedTool) -> str:
    return f"{tool.name} takes: {', '.join(tool.arguments)}."
