"""`--max-tokens` and `--max-cost` stop evaluations, samples and trainings, which are resumed with larger ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.openai_server import OpenAIServer, openai_server

from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

EMBEDDED = ("embedded", "--sandboxes=1", "--set=pool.sessions_per_sandbox=2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server() as running:
        yield running


def spent(run: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(Path(run, "run.json").read_text())["spent"]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "resume"),
    [
        (("eval", *EMBEDDED, "--limit=12"), "eval"),
        (("sample", *EMBEDDED, "--limit=6", "--num-candidates=2"), "sample"),
    ],
)
def test_tokens_stop_it_and_a_larger_limit_continues(
    command: tuple[str, ...], resume: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = failure([*command, "--max-tokens=1000", "--run-dir=run"], capsys)
    assert code == 75 and "of --max-tokens 1,000 are used" in said
    assert "Estimate from the first" not in said[said.index("fix: ") :]
    assert f"finqa {resume} --resume run with a larger --max-cost or --max-tokens" in said
    played = len(list(read_jsonl(Path("run/trajectories.jsonl"))))
    assert 0 < played < 12 and spent("run")["tokens"] >= 1000 and spent("run")["episodes"] == played
    code, _ = failure([resume, "--resume=run", "--max-tokens=1001"], capsys)
    assert code == 75, "what is recorded counts"
    document([resume, "--resume=run", "--max-tokens=1000000"], capsys)
    assert len(list(read_jsonl(Path("run/trajectories.jsonl")))) == spent("run")["episodes"] == 12


def test_what_the_service_charges_stops_it(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    prices = "engine.options.prices={analyst = {input = 1.0, output = 2.0}}"
    command = ["eval", "analyst", "--limit=12", "--sandboxes=1", "--engine=openai", "--run-dir=run"]
    command += ["--set=pool.sessions_per_sandbox=1", "--set", f"engine.options.base_url={server.url}", "--set", prices]
    code, said = failure([*command, "--max-cost=0.001"], capsys)
    assert code == 75 and "of --max-cost $0.001 is spent" in said
    assert "No run beside run shows" in said
    assert 0.001 <= spent("run")["cost_usd"] < 0.003
    report = document(["eval", "--resume=run", "--max-cost=1"], capsys)
    assert report["episodes"] == 12 and spent("run")["cost_usd"] == pytest.approx(
        sum(record["metadata"]["usage"]["cost_usd"] for record in read_jsonl(Path("run/trajectories.jsonl")))
    )


@pytest.mark.thorough
def test_a_training_stops_and_its_resume_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        "--quick-test",
        "--sandboxes=2",
        "--iterations=2",
        "--limit=2",
        "--no-preflight",
        "--run-dir=run",
    ]
    code, said = failure([*command, "--max-tokens=4000"], capsys)
    assert code == 75 and "finqa train --resume run with a larger" in said
    before = spent("run")["tokens"]
    done = document(["train", "--resume=run", "--max-tokens=10000000"], capsys)
    assert done["iterations"] == 2 and spent("run")["tokens"] > before >= 4000


@pytest.mark.parametrize("flag", ["--max-tokens=0", "--max-cost=0", "--max-cost=-1", "--max-cost=nan"])
def test_a_limit_is_above_zero(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = failure(["eval", "embedded", flag], capsys)
    assert code == 78 and not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["eval", "scripted", "--max-tokens=100"], "uses no tokens"),
        (["eval", "embedded", "--max-cost=5"], "No part of this run has a price"),
        (["sample", "embedded", "--max-cost=5", "--set=run.gpu_hour_price=2"], "No part of this run has a price"),
        (["train", "--max-cost=5", "--quick-test"], "No part of this run has a price"),
        (["train", "--dry-run", "--engine=scripted", "--max-tokens=100"], "uses no tokens"),
    ],
)
def test_a_limit_that_could_never_be_reached_is_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = failure(arguments, capsys)
    assert code == 78 and reason in said and not list(Path().glob("runs/*"))


def test_a_dry_run_stops_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--dry-run", "--model=embedded", "--sandboxes=2", "--iterations=4", "--run-dir=run"]
    code, said = failure([*command, "--max-tokens=2000"], capsys)
    assert code == 75 and "of --max-tokens 2,000 are used" in said and spent("run")["tokens"] >= 2000
