"""Questions that are chosen by their names, or by how an earlier evaluation went, and why its attempts were wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.openai_server import OpenAIServer, openai_server, says

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")


class Replies:
    """Replies of a model: the recorded right answers, each multiplied by a factor that is chosen by its question."""

    def __init__(self) -> None:
        self.truths: dict[str, str] = {}
        self.factor = 1.0

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        words = body["messages"][-1]["content"]
        truth = next((truth for prompt, truth in self.truths.items() if prompt in words), "1")
        value = float(truth) * self.factor
        return says(json.dumps({"answer": f"{value:g}", "program": f"multiply({truth}, {self.factor:g})"}))


@pytest.fixture
def replies() -> Replies:
    return Replies()


@pytest.fixture
def server(replies: Replies) -> Iterator[OpenAIServer]:
    with openai_server(replies) as running:
        yield running


def ids_of(run: str) -> set[str]:
    return {record["task"]["id"] for record in read_jsonl(Path(run, "trajectories.jsonl"))}


def test_failures_of_a_run_are_asked_again(
    server: OpenAIServer, replies: Replies, capsys: pytest.CaptureFixture[str]
) -> None:
    on = ["--base-url", server.url, "--quiet"]
    assert main(["eval", "analyst", "--environment=finqa-text", "--split=train", "-n6", "--run-dir=bad", *on]) == 0
    records = list(read_jsonl(Path("bad/trajectories.jsonl")))
    said = capsys.readouterr().out
    report = json.loads(Path("bad/report.json").read_text())
    wrong = {record["task"]["id"] for record in records if record["components"]["correct"] < 1}
    assert sum(report["reasons"].values()) == len(wrong) > 0 and "why attempts are wrong" in said
    assert "quoted year columns" not in said and report["quoted_years"] is None

    assert main(["eval", "analyst", "--from=bad", "--failed", "--run-dir=again", *on]) == 0
    settings = json.loads(Path("again/settings.json").read_text())
    assert ids_of("again") == wrong and settings["environment"]["name"] == "finqa-text"
    one = sorted(wrong)[0]
    kind = next(record["task"]["kind"] for record in records if record["task"]["id"] == one)
    assert main(["eval", "analyst", "--from=bad", "--kind", kind, "--run-dir=kind", *on]) == 0
    assert one in ids_of("kind") <= ids_of("bad")
    text = ["--environment=finqa-text", "--split=train", *on]
    assert main(["eval", "analyst", f"--ids={one}", *text, "--run-dir=one"]) == 0 and ids_of("one") == {one}
    assert main(["eval", "analyst", "--range=2-4", *text, "--run-dir=range"]) == 0 and len(ids_of("range")) == 3
    capsys.readouterr()
    for flags, words in (
        (["--ids=none-such"], "has --ids none-such"),
        (["--company=Nobody"], "has --company Nobody"),
        (["--failed"], "needs the evaluation"),
        (["--range=0-3"], "eval.range"),
        (["--from=bad", "--faulted"], "has no faulted attempt"),
        (["--from=bad", f"--ids={one}"], "both name the questions"),
    ):
        status, said = failure(["eval", "analyst", *flags, *text, "--run-dir=no"], capsys)
        assert status in (2, 65, 78) and words in said, said
    assert not Path("no").exists()


def test_reasons_are_in_the_report_and_the_comparison(
    server: OpenAIServer, replies: Replies, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ["--environment=finqa-text", "--split=train", "-n4", "--base-url", server.url, "--quiet"]
    text += ["--set=environment.options.counts=answer"]
    assert main(["eval", "analyst", *text, "--run-dir=first"]) == 0
    replies.truths = {
        record["task"]["prompt"]: record["values"]["truth"]
        for record in read_jsonl(Path("first/trajectories.jsonl"))
        if record["values"]["truth"]
    }
    replies.factor = -1.0
    capsys.readouterr()
    assert document(["eval", "analyst", *text, "--run-dir=minus"], capsys)["reasons"].get("sign")
    capsys.readouterr()
    assert main(["compare", "a=first", "b=minus", "--no-plots", "--out=compared"]) == 0
    assert "the right value with the other sign" in capsys.readouterr().out
    assert "the right value with the other sign" in Path("compared/report.md").read_text()
