"""The check of keys is one for all engines that ask a server."""

from __future__ import annotations

import pytest

from finqa_plugins.engines.anthropic.plugin import readiness as of_anthropic
from finqa_plugins.engines.openai.plugin import readiness as of_openai

ENGINES = {"anthropic": of_anthropic, "openai": of_openai}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_variable_that_the_options_name_is_the_one_that_is_needed(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"engine": {"name": engine, "options": {"api_key_env": "FINQA_TEST_KEY"}}}
    monkeypatch.delenv("FINQA_TEST_KEY", raising=False)
    (check,) = ENGINES[engine](settings)
    assert check.status == "fail" and check.detail == "needs FINQA_TEST_KEY"
    assert check.remedy.startswith("export FINQA_TEST_KEY=...")
    monkeypatch.setenv("FINQA_TEST_KEY", "k" * 20)
    assert ENGINES[engine](settings) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_options_are_named_before_keys(engine: str) -> None:
    (check,) = ENGINES[engine]({"engine": {"name": engine, "options": {"nonsense": 1}}})
    assert check.status == "fail" and "wrong options" in check.detail and engine in check.remedy
