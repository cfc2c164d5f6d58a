"""Offers the contract suites to `finqa plugins check`."""

from __future__ import annotations

from finqa_cli.extend import hookimpl

SUITES = (
    *("call_format", "chat_engine", "codec", "engine", "environment", "learner"),
    *("optimizer", "reward", "sandbox", "tracker"),
)


@hookimpl
def contract_suite(kind: str) -> str | None:
    """Return the module with the tests of a kind of component; None if there is none."""
    return f"finqa_testing.contract.{kind}_suite" if kind in SUITES else None
