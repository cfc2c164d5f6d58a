"""Limits of tokens, cost and time, of runs and of episodes, on servers that report usage wrongly or not at all.

No limit is passed by more than is stated: a run by one episode, an episode by one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import failure
from fixtures.openai_server import OpenAIServer, calls, openai_server

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

LOOK = '''
class Look:
    """Look at something."""

    @staticmethod
    def tasks():
        yield {"prompt": "Look around.", "id": "one"}

    def look(self, place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        return "nothing here " * 20

    def reward(self) -> float:
        return 0.0
'''
PRICES = "--set=engine.options.prices={analyst = {input = 2.0, output = 10.0}}"
USAGES: dict[str, Any] = {
    "right": {"prompt_tokens": 100, "completion_tokens": 10},
    "missing": None,
    "partial": {"prompt_tokens": 100},
    "wrong": {"prompt_tokens": -5, "completion_tokens": "many"},
}
TURNS = 8
LIMITS = {
    ("run", "tokens"): "--max-tokens=600",
    ("run", "cost"): "--max-cost=0.0012",
    ("run", "time"): "--max-time=0.000001",
    ("episode", "tokens"): "--max-episode-tokens=250",
    ("episode", "cost"): "--max-episode-cost=0.0005",
    ("episode", "time"): "--set=generation.episode_timeout_s=0.000001",
}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    Path("look.py").write_text(LOOK)
    with openai_server(lambda body: calls(("look", {"place": "here"}))) as running:
        yield running


def used(record: dict[str, Any]) -> dict[str, float]:
    usage = record["metadata"]["usage"]
    return {"tokens": usage["prompt_tokens"] + usage["completion_tokens"], "cost": usage["cost_usd"]}


@pytest.mark.parametrize(
    "usage", [pytest.param(name, marks=() if name == "wrong" else pytest.mark.thorough) for name in USAGES]
)
@pytest.mark.parametrize(("scope", "kind"), LIMITS)
def test_no_limit_is_passed_by_more_than_stated(
    scope: str, kind: str, usage: str, server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.usage = USAGES[usage]
    command = [
        "eval",
        "analyst",
        "--environment=./look.py",
        "--split=train",
        "--base-url",
        server.url,
        PRICES,
        "--quiet",
    ]
    command += [f"--max-steps={TURNS}", "--attempts=12", "--limit=1", "--run-dir=run", LIMITS[scope, kind]]
    status = main(command)
    log = Path("run/trajectories.jsonl")
    records = list(read_jsonl(log)) if log.exists() else []
    said = capsys.readouterr()
    if scope == "run":
        assert status == 75, said.err
        if kind != "time":  # episodes that have begun are finished, so a clock may find all of them begun
            assert len(records) < 12
            limit = float(LIMITS[scope, kind].partition("=")[2])
            largest = max(used(record)[kind] for record in records)
            assert limit <= sum(used(record)[kind] for record in records) <= limit + largest
        return
    assert status == 0, said.err
    assert len(records) == 12
    for record in records:
        assert record["status"] == ("timeout" if kind == "time" else "max_tokens"), record["error"]
        if kind == "time":
            continue
        limit = float(LIMITS[scope, kind].partition("=")[2])
        assert f" of --max-episode-{kind} " in record["error"] and record["reward"] == 0.0, "it is graded, and no fault"
        turn = used(record)[kind] / len(record["turns"])  # the longest turn is the last one, at most twice the mean
        assert limit <= used(record)[kind] <= limit + 2 * turn and len(record["turns"]) < TURNS
    if usage != "right" and kind != "time":
        assert json.loads(Path("run/report.json").read_text())["usage"]["estimated"] is True


def test_a_limit_without_a_meter_is_refused(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--environment=./look.py", "--split=train", "--run-dir=run"]
    on = ["eval", "analyst", "--base-url", server.url, *flags]
    for command, words in (
        ([*on, "--max-episode-cost=1"], "no price"),
        ([*on, "--max-cost=1"], "price"),
        (["eval", "random", *flags, "--max-episode-tokens=9"], "no tokens"),
        (["eval", "random", *flags, "--max-tokens=9"], "no tokens"),
    ):
        status, said = failure(command, capsys)
        assert status == 78 and words in said and not server.asked
