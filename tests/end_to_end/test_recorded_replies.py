"""`--cache`: replies of a server are kept and not paid for again, and the records say how old they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixtures.command_calls import failure
from fixtures.openai_server import Fault, error_body, openai_server, says

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

PRICES = "--set=engine.options.prices={analyst = {input = 2, output = 10}}"
REPLY = '{"answer": "1", "program": "add(1, 2)"}'


def test_a_reply_is_paid_once(capsys: pytest.CaptureFixture[str]) -> None:
    home = Path("home")
    with openai_server(lambda body: says(REPLY)) as server:
        flags = ["--environment=finqa-text", "--split=train", "-n3", "--base-url", server.url, PRICES, "--quiet"]
        flags += ["--cache", f"--set=data.home={home}"]
        server.faults = [Fault(status=500, body=error_body("down"))]
        assert main(["eval", "analyst", *flags, "--set=engine.options.backoff_s=0.01", "--run-dir=first"]) == 0
        assert len(server.asked) == 4, "one was sent twice"
        assert main(["eval", "analyst", *flags, "--run-dir=second"]) == 0
        assert len(server.asked) == 4, "nothing was sent"
        assert "3 recorded replies up to 0.0 h old" in capsys.readouterr().out
        reports = [json.loads(Path(run, "report.json").read_text()) for run in ("first", "second")]
        assert reports[1]["accuracy"] == reports[0]["accuracy"]
        first, second = (report["usage"] for report in reports)
        assert first["cost_usd"] > 0 == second["cost_usd"] and first["prompt_tokens"] == second["prompt_tokens"]
        (record, *_) = read_jsonl(Path("second/trajectories.jsonl"))
        assert record["metadata"]["usage"]["replayed"] == 1 and record["metadata"]["usage"]["oldest_reply_s"] >= 0

        assert main(["eval", "analyst", *flags, "--attempts=2", "--run-dir=twice"]) == 0
        assert len(server.asked) == 7, "each attempt has its own reply"
        changed = ["--max-gen-tokens=99", "--run-dir=other"]
        assert main(["eval", "analyst", *flags, *changed]) == 0 and len(server.asked) == 10, "another request"

        for file in home.rglob("replies/*/*.json"):
            file.write_bytes(os.urandom(9))
        assert main(["eval", "analyst", *flags, "--run-dir=damaged"]) == 0 and len(server.asked) == 13
    assert "Bearer" not in "".join(file.read_text(errors="replace") for file in home.rglob("replies/*/*.json"))


def test_it_is_for_evaluations_of_servers_only(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = failure(["eval", "scripted", "--cache"], capsys)
    assert status == 2 and "--cache would have no effect" in said
    with openai_server(lambda body: says(REPLY)) as server:
        flags = ["--environment=finqa-text", "--engine=openai", f"--set=engine.options.base_url={server.url}"]
        status, said = failure(["sample", "analyst", *flags, "--set=engine.options.replies=kept"], capsys)
        assert status == 78 and "for evaluations only" in said and not server.asked
