"""One episode on the real service of each provider whose key is set; it costs less than a cent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.types.model_providers import PROVIDERS

pytestmark = [pytest.mark.cloud, pytest.mark.usefixtures("empty_folder")]

SMALL = {
    "openai": "gpt-4.1-nano",
    "anthropic": "claude-haiku-4-5",
    "google": "gemini-2.5-flash-lite",
    "openrouter": "openai/gpt-4.1-nano",
    "together": "meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "mistral": "mistral-small-latest",
    "groq": "llama-3.1-8b-instant",
    "deepseek": "deepseek-chat",
}


@pytest.mark.parametrize("name", SMALL)
def test_an_episode_is_played_and_metered(name: str) -> None:
    if not os.environ.get(PROVIDERS[name].key_variable):
        pytest.skip(f"needs {PROVIDERS[name].key_variable}")
    flags = ["-n", "1", "--sandboxes=1", "--run-dir=run", "--max-steps=6", "--quiet"]
    assert main(["eval", f"{name}/{SMALL[name]}", *flags]) == 0
    usage = json.loads(Path("run/report.json").read_text())["usage"]
    assert usage["sampled_tokens"] > 0 and not usage["estimated"]
