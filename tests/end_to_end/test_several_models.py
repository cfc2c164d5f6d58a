"""Several policies in one command: the same questions, one comparison; faults of one and kills of all lose nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fixtures.anthropic_server import KEY, AnthropicServer, anthropic_server
from fixtures.anthropic_server import says as claude_says
from fixtures.command_calls import failure
from fixtures.openai_server import OpenAIServer, openai_server, says

from finqa_cli.app import main
from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.several_models import plan_several
from finqa_cli.runs.jsonl import count_lines, read_jsonl
from finqa_cli.settings import Settings

pytestmark = pytest.mark.usefixtures("empty_folder")

TEXT = ["--environment", "finqa-text", "--split", "train", "--quiet"]
PRICES = (
    "{claude-sonnet-4-5 = {input = 3, output = 15}, analyst = {input = 2, output = 10}, "
    "unsteady = {input = 2, output = 10}}"
)
TARGETS = ("anthropic/claude-sonnet-4-5", "vllm/analyst", "ollama/unsteady")
LABELS = ("claude-sonnet-4-5", "analyst", "unsteady")
QUESTIONS = 60
ONCE = ["--set=engine.options.max_retries=0", "--set=pool.max_play_retries=0"]


def digest(body: Mapping[str, Any]) -> int:
    return int(hashlib.sha256(json.dumps(body["messages"], sort_keys=True).encode()).hexdigest(), 16)


def answer(body: Mapping[str, Any], often: int) -> str:
    """A reply that is the same for the same question, and differs between the models."""
    return json.dumps({"answer": str(digest(body) % often), "program": f"add({digest(body) % often}, 0)"})


class Servers:
    """Three services; `slow_s` is how long each reply takes."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow_s = 0.0
        self.claude: AnthropicServer = stack.enter_context(
            anthropic_server(lambda body: claude_says(self._late(answer(body, 3))))
        )
        self.analyst: OpenAIServer = stack.enter_context(
            openai_server(lambda body: says(self._late(answer(body, 2))), models=("analyst",))
        )
        self.unsteady: OpenAIServer = stack.enter_context(openai_server(self._unsteady, models=("unsteady",)))
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        for name, server in (("ANTHROPIC", self.claude), ("VLLM", self.analyst), ("OLLAMA", self.unsteady)):
            monkeypatch.setenv(f"{name}_BASE_URL", server.url)

    def _late(self, text: str) -> str:
        time.sleep(self.slow_s)
        return text

    def _unsteady(self, body: Mapping[str, Any]) -> dict[str, Any]:
        choice = says(self._late(answer(body, 4)))
        return {"index": 0, "finish_reason": "error"} if digest(body) % 5 == 0 else choice


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, monkeypatch)


def command(*flags: str) -> list[str]:
    return ["eval", *TARGETS, *TEXT, *ONCE, f"--set=engine.options.prices={PRICES}", *flags]


def test_all_are_played_on_the_same_questions_and_compared(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(command("--limit=20", "--run-dir=models"))
    said = capsys.readouterr()
    assert status == 3, "one model ended with faults"
    assert "fix: finqa eval --resume models, which plays what is missing" in said.err
    compared = json.loads(Path("models/comparison/comparison.json").read_text())
    assert [each["label"] for each in compared["methods"]] == list(LABELS)
    assert len(compared["comparisons"]) == 3 and all("p_value_holm" in each for each in compared["comparisons"])
    questions = [
        {record["task"]["id"] for record in read_jsonl(Path("models", label, "trajectories.jsonl"))} for label in LABELS
    ]
    assert questions[0] == questions[1] == questions[2] and len(questions[0]) == 20
    rows = {row["method"]: row for row in compared["runs"]}
    assert rows["unsteady"]["faults"] > 0 == rows["analyst"]["faults"]
    for label in ("analyst", "unsteady"):  # a reply that cannot be used is charged as well
        assert rows[label]["cost_usd"] == pytest.approx(20 * (100 * 2 + 10 * 10) / 1e6)
    assert "$" in said.out and "Report: models/comparison/report.md" in said.out


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_two_kills_and_other_concurrency_change_nothing(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures are those of an undisturbed run, and the cost is the servers' own count of the distinct requests."""
    servers.claude.usage = lambda body, content: {  # type: ignore[method-assign]
        "input_tokens": len(json.dumps(body["messages"])) // 4,
        "output_tokens": 7,
    }
    flags = (f"--limit={QUESTIONS}", "--sandboxes=2")
    assert main(command(*flags, "--run-dir=whole")) == 3
    servers.slow_s = 0.01
    kill_once("claude-sonnet-4-5", 20, *flags, "--run-dir=killed")
    kill_once("analyst", 30, *flags[:1], "--sandboxes=4", "--run-dir=killed")
    servers.slow_s = 0.0
    before = len(servers.analyst.asked)
    assert main(["eval", "--resume=killed", "--sandboxes=3", "--quiet"]) == 3
    assert len(servers.analyst.asked) - before + 4 * 2 >= QUESTIONS - 30 - 8, "what is recorded is not played again"
    for label in LABELS:
        for name in ("report.json", "metrics.json", "items.csv"):
            assert Path("killed", label, name).read_bytes() == Path("whole", label, name).read_bytes(), (label, name)
    compared = [json.loads(Path(run, "comparison/comparison.json").read_text()) for run in ("killed", "whole")]
    assert compared[0]["comparisons"] == compared[1]["comparisons"]
    costs = {row["method"]: row["cost_usd"] for row in compared[0]["runs"]}
    asked = {json.dumps(body): body for body in servers.claude.asked}
    counted = sum(3 * (len(json.dumps(body["messages"])) // 4) + 15 * 7 for body in asked.values()) / 1e6
    assert costs["claude-sonnet-4-5"] == pytest.approx(counted)
    assert costs["analyst"] == pytest.approx(QUESTIONS * (100 * 2 + 10 * 10) / 1e6)
    assert len({json.dumps(body) for body in servers.unsteady.asked}) == QUESTIONS
    assert costs["unsteady"] == pytest.approx(QUESTIONS * (100 * 2 + 10 * 10) / 1e6), "a spoiled reply is charged too"


def kill_once(label: str, recorded: int, *flags: str) -> None:
    """Starts the command and kills it once so many attempts of one model are recorded."""
    process = subprocess.Popen(
        [sys.executable, "-m", "finqa_cli", *command(*flags)],
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = Path("killed", label, "trajectories.jsonl")
    try:
        while (count_lines(log) if log.exists() else 0) < recorded and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_policies_that_cannot_be_evaluated_stop_no_other(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["vllm/analyst", "vllm/unknown", "ollama/unsteady"]
    status, said = failure(["eval", *targets, *TEXT, "--limit=3", "--run-dir=run"], capsys)
    assert status == 3 and "vllm/unknown is not complete: The server has no model 'unknown'" in said
    steps = json.loads(Path("run/run.json").read_text())["steps"]
    assert {label: step["status"] for label, step in steps.items()}["unknown"] == "failed"
    assert Path("run/comparison/report.md").is_file()
    assert failure(["eval", "vllm/analyst", "vllm/analyst", *TEXT], capsys)[0] == 2
    assert failure(["eval", *targets, *TEXT, "--limit=4", "--run-dir=run"], capsys)[0] == 78, "other settings"


def test_policies_that_would_be_asked_different_questions_are_refused() -> None:
    other = Settings.model_validate({"data": {"eval_split": "train"}})
    with pytest.raises(ConfigError, match="--split is dev,test,train for a and train for b"):
        plan_several({"a": Settings(), "b": other}, ["a", "b"], fresh=True)
