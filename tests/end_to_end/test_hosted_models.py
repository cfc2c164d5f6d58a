"""Evaluations of models on servers: what they used and cost, in every place that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.anthropic_server import KEY, anthropic_server
from fixtures.anthropic_server import says as claude_says
from fixtures.command_calls import document, failure
from fixtures.openai_server import Fault, OpenAIServer, error_body, openai_server, says

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

TEXT = ["--environment", "finqa-text", "--split", "train", "--quiet"]


def reply(body: Mapping[str, Any]) -> dict[str, Any]:
    return says('{"answer": "1", "program": "add(1, 2)"}')


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server(reply) as running:
        yield running


def on(server: OpenAIServer, *flags: str) -> list[str]:
    return ["eval", "analyst", "--engine=openai", f"--set=engine.options.base_url={server.url}", *TEXT, *flags]


def test_every_place_shows_what_a_server_used(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.faults = [Fault(status=503, body=error_body("busy"))]
    server.usage = {**server.usage, "prompt_tokens_details": {"cached_tokens": 60}}
    prices = 'engine.options.prices={"analyst": {"input": 2.0, "output": 10.0, "cached_input": 1.0}}'
    assert main(on(server, "--limit=3", "--run-dir=run", "--set", prices, "--set=engine.options.backoff_s=0.01")) == 0
    line = "300 prompt (180 cached) + 30 sampled tokens, $0.00072, 1 retry"
    assert line in capsys.readouterr().out
    report = json.loads(Path("run/report.json").read_text())
    assert report["sampled_tokens_mean"] == 10 and report["usage"]["prompt_tokens"] == 300
    assert report["usage"]["cost_usd"] == pytest.approx(3 * (40 * 2 + 60 * 1 + 10 * 10) / 1e6)
    (record, *_) = read_jsonl(Path("run/trajectories.jsonl"))
    assert record["turns"][0]["completion_tokens"] is None, "ids are unknown, which is not 0 tokens"

    assert document(["show", "run", "1"], capsys)["usage"]["sampled_tokens"] == 10
    main(["show", "run"])
    assert line in capsys.readouterr().out
    assert document(["top", "run"], capsys)["use"]["sampled"] == 30
    assert main(["report", "run"]) == 0 and "300 prompt (180 cached)" in Path("run/report.html").read_text()
    capsys.readouterr()
    assert main(["export", "run", "--to", "inspect", "--out", "logs"]) == 0
    (usage,) = json.loads(next(Path("logs").glob("2*.json")).read_text())["stats"]["model_usage"].values()
    assert usage["output_tokens"] == 30 and usage["input_tokens_cache_read"] == 180


def test_a_server_without_usage_is_estimated_and_the_limit_of_tokens_ends_the_run(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.usage = None
    assert main(on(server, "--limit=3", "--run-dir=whole")) == 0
    whole = json.loads(Path("whole/report.json").read_text())["usage"]
    assert whole["estimated"] and whole["prompt_tokens"] > 100 and "about " in capsys.readouterr().out
    limit = (whole["prompt_tokens"] + whole["sampled_tokens"]) // 2
    limited = on(server, "--limit=40", "--run-dir=run", f"--max-tokens={limit}")
    assert failure(limited, capsys)[0] == 75
    assert len(list(read_jsonl(Path("run/trajectories.jsonl")))) <= 3


def test_a_limit_of_cost_needs_a_price(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = failure(on(server, "--limit=1", "--run-dir=free", "--max-cost=1"), capsys)
    assert status == 78 and "price" in said and not server.asked
    Path("prices.toml").write_text("[analyst]\ninput = 5.0\noutput = 5.0\n")
    priced = on(server, "--limit=1", "--run-dir=run", "--max-cost=1", "--set=engine.options.prices=prices.toml")
    assert main(priced) == 0
    assert json.loads(Path("run/report.json").read_text())["usage"]["cost_usd"] == pytest.approx(110 * 5 / 1e6)


def test_an_expert_of_no_tokens_claims_none(capsys: pytest.CaptureFixture[str]) -> None:
    report = document(["eval", "scripted", *TEXT, "--limit=1", "--run-dir=run"], capsys)
    assert report["usage"] is None and report["sampled_tokens_mean"] is None


def test_a_model_is_named_with_its_provider(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", server.url.removesuffix("/v1"))
    assert main(["eval", "-m", "vllm/analyst", "-n", "2", *TEXT, "--run-dir=run"]) == 0
    assert {body["model"] for body in server.asked} == {"analyst"} and len(server.asked) == 2
    assert json.loads(Path("run/report.json").read_text())["target"] == "vllm/analyst"
    assert main(["eval", "analyst", "--base-url", server.url, "-n", "1", *TEXT, "--run-dir=other"]) == 0
    status, said = failure(["eval", "azure/gpt-4o", *TEXT], capsys)
    assert status == 78 and "AZURE_OPENAI_ENDPOINT" in said
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    status, said = failure(["eval", "google/gemini-2.5-flash", *TEXT, "-n", "1"], capsys)
    assert status == 77 and "export GEMINI_API_KEY=" in said


def test_claude_is_evaluated_with_its_list_price(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    prices = (
        "engine.options.prices={claude-sonnet-4-5 = {input = 3, output = 15, cached_input = 0.3, cache_write = 3.75}}"
    )
    answer = '{"answer": "1", "program": "add(1, 2)"}'
    with anthropic_server(lambda body: claude_says(answer)) as server:
        flags = ["--base-url", server.url, "--max-cost=1", "--set", prices, "-n", "2", "--run-dir=run", *TEXT]
        assert main(["eval", "anthropic/claude-sonnet-4-5", *flags]) == 0
        assert len(server.asked) == 2
    usage = json.loads(Path("run/report.json").read_text())["usage"]
    assert usage["cost_usd"] > 0 and not usage["estimated"] and KEY not in Path("run/settings.json").read_text()
    assert "sampled tokens, $" in capsys.readouterr().out


def test_what_cannot_change_results_may_change_on_resume(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [Fault(status=500, times=9)]
    flags = ["--limit=6", "--run-dir=run", "--sandboxes=2", "--set=engine.options.max_retries=0"]
    retries = ["--set=pool.max_play_retries=0", "--set=pool.max_fault_share=0.0"]
    assert main(on(server, *flags, *retries)) == 3
    server.faults = []
    capsys.readouterr()
    assert failure(["eval", "--resume", "run", "--sandboxes=0"], capsys)[0] == 2
    for refused in ("generation.max_gen_tokens=9", "engine.options.omit=seed", "engine.options.prices.analyst.input=1"):
        status, said = failure(["eval", "--resume", "run", "--set", refused], capsys)
        assert status == 2 and "could change its results" in said
    changed = ["--sandboxes=5", "--set=engine.options.max_retries=4", "--set=engine.options.max_concurrent=3"]
    assert main(["eval", "--resume", "run", *changed, "--quiet"]) == 0
    settings = json.loads(Path("run/settings.json").read_text())
    assert (settings["pool"]["sandboxes"], settings["engine"]["options"]["max_retries"]) == (5, 4)
    assert settings["pool"]["max_play_retries"] == 0
    assert json.loads(Path("run/report.json").read_text())["faults"] == 0
