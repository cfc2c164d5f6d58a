"""play, eval, train and doctor with `--engine openai`, against a server on loopback that plays as the expert does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.openai_server import Fault, OpenAIServer, calls, error_body, expert, openai_server

from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server() as running:
        yield running


def on(server: OpenAIServer, *arguments: str) -> list[str]:
    return [*arguments, "--engine=openai", "--set", f"engine.options.base_url={server.url}"]


def test_play_shows_an_episode(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(on(server, "play", "--model=analyst")) == 0
    shown = capsys.readouterr().out
    assert "submit_answer(" in shown and "Reward 1" in shown


def test_eval_of_a_served_expert_is_as_right_as_the_expert(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    clumsy = iter((calls(("sql_query", "{"), ("sql_query", "{}")), calls(("submit_answer", "{"))))

    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(clumsy, None) or expert(body)

    server.answer = answer
    server.faults = [Fault(status=503), Fault(status=429, headers={"Retry-After": "0.1"}, body=error_body("slow"))]
    report = document(on(server, "eval", "analyst", "--limit=6", "--set", "engine.options.backoff_s=0.05"), capsys)
    assert (report["episodes"], report["faults"], report["accuracy"]) == (6, 0, 1.0)
    records = [json.loads(line) for line in (Path(report["run"]) / "trajectories.jsonl").read_text().splitlines()]
    told = [turn["parse_error"] for record in records for turn in record["turns"] if turn["parse_error"]]
    assert (
        len(told) == 2 and any("2 tool calls" in one for one in told) and any("not valid JSON" in one for one in told)
    )


def test_a_context_that_is_full_is_scored_and_no_fault(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [Fault(times=100, status=400, body=error_body("no", code="context_length_exceeded"))]
    report = document(on(server, "eval", "analyst", "--limit=1"), capsys)
    assert report["faults"] == 0 and report["accuracy"] == 0.0
    (record,) = (json.loads(line) for line in (Path(report["run"]) / "trajectories.jsonl").read_text().splitlines())
    assert record["status"] == "max_tokens" and record["turns"] == []
    assert len(server.asked) == 1


def test_usage_stands_in_the_trajectories(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    prices = "engine.options.prices={analyst = {input = 1.0, output = 2.0}}"
    report = document(on(server, "eval", "analyst", "--limit=2", "--set", prices), capsys)
    for line in (Path(report["run"]) / "trajectories.jsonl").read_text().splitlines():
        record = json.loads(line)
        usage = record["metadata"]["usage"]
        assert usage["requests"] == len(record["turns"])
        assert usage["cost_usd"] == pytest.approx(usage["requests"] * 0.00012)


def test_names_on_the_server_are_taken_as_they_are(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.models = ["accounts/acme/models/analyst"]
    report = document(on(server, "eval", server.models[0], "--limit=1"), capsys)
    assert report["accuracy"] == 1.0


def test_an_adapter_is_not_ignored(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("adapter")
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "embedded"}')
    status, told = failure(on(server, "eval", "adapter", "--set", "engine.options.model=analyst"), capsys)
    assert status == 78 and "cannot train or play an adapter: There is no completions API" in told
    assert not server.asked


def test_train_refuses_with_the_reason(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = failure(on(server, "train", "--model=embedded", "--set", "engine.options.model=analyst"), capsys)
    assert status == 78 and "no token ids and log-probabilities, so it cannot train" in told
    assert "fix: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve" in told and not server.asked
    status, told = failure(on(server, "train", "--model=embedded", "--lora-rank=0"), capsys)
    assert status == 78 and "--lora-rank 0 trains the whole model" in told


def test_a_wrong_key_ends_the_run_with_its_own_status(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sk-right-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-0123456789")
    status, told = failure(on(server, "play", "--model=analyst"), capsys)
    assert status == 77 and "rejected the API key" in told and "sk-wrong" not in told


def test_a_key_that_is_refused_in_mid_run_ends_it(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.faults = [Fault(times=100, status=401, body=error_body("revoked"))]
    status, told = failure(on(server, "eval", "analyst", "--limit=4"), capsys)
    assert status == 77 and "revoked" in told


def test_the_key_is_not_in_the_run_folder(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sk-secret-0123456789"
    monkeypatch.setenv("FINQA_ENGINE__OPTIONS__API_KEY", server.key)
    report = document(on(server, "eval", "analyst", "--limit=1"), capsys)
    files = [path for path in Path(report["run"]).rglob("*") if path.is_file()]
    assert files and not [path for path in files if server.key.encode() in path.read_bytes()]


def checks(server: OpenAIServer, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*on(server, "doctor", *arguments), "--json"])
    found = json.loads(capsys.readouterr().out)
    return {check["name"]: check for check in found["checks"] if check["name"].startswith("openai")}


def test_doctor_looks_at_server_key_and_model(
    server: OpenAIServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checks(server, capsys, "--model=analyst")
    assert {name: check["status"] for name, check in found.items()} == {"openai server": "ok", "openai model": "ok"}
    unknown = checks(server, capsys, "--model=other")["openai model"]
    assert unknown["status"] == "warn" and "'other' is not among analyst" in unknown["detail"] and unknown["remedy"]
    server.key = "sk-right-0123456789"
    refused = checks(server, capsys, "--model=analyst")["openai key"]
    assert refused["status"] == "fail" and refused["remedy"]
    monkeypatch.setenv("OPENAI_API_KEY", server.key)
    assert checks(server, capsys, "--model=analyst")["openai server"]["status"] == "ok"
    monkeypatch.setenv("FINQA_ENGINE__OPTIONS__API_KEY", server.key)
    assert checks(server, capsys, "--model=analyst")["openai key"]["status"] == "warn"
    monkeypatch.delenv("FINQA_ENGINE__OPTIONS__API_KEY")
    with openai_server(models=["other"]) as second:
        both = ["doctor", "--engine=openai", "--model=analyst", "--json", "--set"]
        main([*both, f"engine.options.base_urls=['{server.url}', '{second.url}']"])
        listed = json.loads(capsys.readouterr().out)["checks"]
        assert [one["status"] for one in listed if one["name"] == "openai model"] == ["ok", "warn"]
    server.stop()
    assert checks(server, capsys, "--model=analyst")["openai server"]["status"] == "fail"
