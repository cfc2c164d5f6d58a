"""Tokens and cost of attempts: ids, else the server's usage, else unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.types.token_use import TokenUse, recorded_use, total_use, use_of


def record(*turns: tuple[int | None, int | None], **usage: Any) -> dict[str, Any]:
    rows = [{"prompt_tokens": given, "completion_tokens": made} for given, made in turns]
    return {"turns": rows, "metadata": {"usage": usage} if usage else {}}


def test_ids_come_before_the_usage_of_the_server() -> None:
    found = recorded_use(record((7, 2), (3, 1), prompt_tokens=99, completion_tokens=98, cost_usd=0.5))
    assert found == TokenUse(prompt=10, sampled=3, cost_usd=0.5)


def test_the_usage_of_the_server_stands_in_for_ids() -> None:
    usage = {"prompt_tokens": 40, "cached_tokens": 30, "completion_tokens": 8, "cost_usd": None, "retries": 2}
    assert recorded_use(record((None, None), **usage)) == TokenUse(prompt=40, cached=30, sampled=8, retries=2)
    old = recorded_use(record((0, 0), **usage))  # records of earlier versions
    assert old is not None and old.sampled == 8


@pytest.mark.parametrize("usage", [{}, {"requests": 3, "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}])
def test_what_is_unknown_is_not_zero(usage: dict[str, Any]) -> None:
    assert recorded_use(record((None, None), **usage)) is None and total_use([None, None]) is None
    partly = total_use([None, TokenUse(prompt=1, sampled=2)])
    assert partly is not None and partly.missing == 1 and "1 episode of unknown use" in partly.text()


def test_the_line_of_a_command() -> None:
    use = TokenUse(prompt=31_000, cached=12_000, sampled=960, cost_usd=0.0431, retries=3)
    assert use.text() == "31k prompt (12k cached) + 960 sampled tokens, $0.043, 3 retries"
    assert TokenUse(prompt=10, sampled=1, estimated=True).text() == "about 10 prompt + 1 sampled tokens"


@given(st.dictionaries(st.text(max_size=20), st.none() | st.integers() | st.text() | st.floats() | st.booleans()))
def test_any_usage_can_be_read_and_survives_the_report(usage: dict[str, Any]) -> None:
    found = use_of([], {"usage": usage | {"completion_tokens": 3}})
    assert found is not None and found.sampled == 3 and found.cached <= found.prompt
    again = TokenUse.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found or found.cost_usd != found.cost_usd
