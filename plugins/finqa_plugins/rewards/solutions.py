"""A solution in either of its formats."""

from __future__ import annotations

from finqa_cli.grading.answers import Reply, parse_reply
from finqa_plugins.rewards.spec import Format


def read_solution(solution: str, written: Format) -> Reply:
    """`json`: a reply with answer and program, or its error. `plain`: the whole text is the answer."""
    return parse_reply(solution) if written == "json" else Reply(answer=solution.strip())
