"""A served policy submits prose: it is asked again, and every page that shows the episode says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.openai_server import calls, expert, openai_server

from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")

PROSE = "I looked at the tables of the company, and it seems that it was rather large, perhaps larger than before."
REASON = "cannot be read as one value"


def is_submission(message: Mapping[str, Any]) -> bool:
    return any(call["function"]["name"] == "submit_answer" for call in message.get("tool_calls") or ())


def hesitant(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plays as the expert, and submits prose before the value."""
    submitted = [place for place, message in enumerate(body["messages"]) if is_submission(message)]
    others = [
        message for place, message in enumerate(body["messages"]) if not {place, place - 1}.intersection(submitted)
    ]
    choice = expert({**body, "messages": others})
    return choice if submitted or not is_submission(choice["message"]) else calls(("submit_answer", {"answer": PROSE}))


def evasive(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Submits nothing but prose."""
    return calls(("submit_answer", {"answer": PROSE}))


@pytest.mark.parametrize(("answer", "accuracy", "again"), [(hesitant, 1.0, 1.0), (evasive, 0.0, 2.0)])
def test_an_unreadable_answer_is_asked_again_and_shown(
    answer: Any, accuracy: float, again: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server(answer) as server:
        flags = ["--engine=openai", "--grader=strict", "--limit=2", "--run-dir=run"]
        played = document(["eval", "analyst", *flags, "--set", f"engine.options.base_url={server.url}"], capsys)
    assert (played["accuracy"], played["components"]["asked_again"]) == (accuracy, again)
    for line in Path("run/trajectories.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        submitted = [turn for turn in record["turns"] if (turn["tool_call"] or {}).get("name") == "submit_answer"]
        assert (record["reward"], len(submitted)) == (accuracy, again + 1)
    assert main(["show", "run", "1"]) == 0
    assert REASON in capsys.readouterr().out
    document(["report", "run", "--out=report.html"], capsys)
    assert REASON in Path("report.html").read_text(encoding="utf-8")
    assert main(["export", "run", "--to=inspect", "--out=log"]) == 0
    (log,) = (path for path in Path("log").iterdir() if path.suffix == ".json" and "samples" in path.read_text("utf-8"))
    for sample in json.loads(log.read_text(encoding="utf-8"))["samples"]:
        assert sample["scores"]["reward"]["metadata"]["asked_again"] == again
        assert REASON in json.dumps(sample["messages"])
