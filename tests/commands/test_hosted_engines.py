"""Doctor and sample on hosted models: the same checks and words for every engine that asks a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.anthropic_server import KEY, anthropic_server
from fixtures.anthropic_server import says as claude_says
from fixtures.openai_server import openai_server, says

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

REPLY = '{"answer": "1", "program": "add(1, 2)"}'


def test_doctor_looks_at_the_service_of_anthropic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def checks(model: str) -> dict[str, str]:
        main(["doctor", "--engine=anthropic", "--model", model, "--json", "--set", address])
        found = json.loads(capsys.readouterr().out)["checks"]
        return {one["name"]: one["status"] for one in found if one["name"].startswith("anthropic ")}

    with anthropic_server(lambda body: claude_says(REPLY)) as server:
        address = f"engine.options.base_url={server.url}"
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        assert checks("claude-sonnet-4-5") == {"anthropic server": "ok", "anthropic model": "ok"}
        assert checks("claude-none") == {"anthropic server": "ok", "anthropic model": "warn"}
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong-key")
        assert checks("claude-sonnet-4-5") == {"anthropic key": "fail"}
        assert not server.asked, "a check costs nothing"


def test_sample_understands_the_words_of_eval(capsys: pytest.CaptureFixture[str]) -> None:
    with openai_server(lambda body: says(REPLY)) as server:
        command = ["sample", "analyst", "--base-url", server.url, "-n", "2", "--environment=finqa-text", "--quiet"]
        assert main([*command, "--num-candidates=2", "--run-dir=run"]) == 0
    assert len(server.asked) == 4 and len(list(read_jsonl(Path("run/trajectories.jsonl")))) == 4
