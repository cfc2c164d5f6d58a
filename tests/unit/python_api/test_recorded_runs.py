"""Runs on disk as objects: episodes, tables, damage, and rich output that executes nothing."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.report_runs import evaluated

import finqa
from finqa_cli.runs.jsonl import read_jsonl

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b[31m"
TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of a policy that is sometimes wrong."""
    run = tmp_path_factory.mktemp("played") / "run"
    finqa.evaluate("random", limit=6, sandboxes=2, seed=3, run_dir=run)
    return run


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in played.iterdir():
        if file.is_file() and file.name != ".lock":
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


class Elements(HTMLParser):
    """Collects elements, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_run_is_what_the_commands_show_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = finqa.load_run(run)
    shown = document(["show", str(run), "--limit=0"], capsys)
    assert (loaded.status, loaded.command) == (shown["run"]["status"], shown["run"]["command"]) == ("completed", "eval")
    names = ("number", "id", "question", "status", "correct", "reward", "answer")
    assert [{name: getattr(each, name) for name in names} for each in loaded.episodes] == [
        {name: row[name] for name in names} for row in shown["episodes"]
    ]
    failed = document(["show", str(run), "--failed", "--limit=0"], capsys)["episodes"]
    assert [each.number for each in loaded.episodes.filter(failed=True)] == [row["number"] for row in failed]
    assert loaded.metrics[0] == json.loads((run / "report.json").read_text())
    assert loaded.settings["eval"]["limit"] == 6
    assert repr(loaded) == f"Run({str(run)!r}: eval, completed, accuracy {loaded.metrics[0]['accuracy']:.3f})"
    assert repr(loaded.metrics) == "<1 records>"
    (run / "metrics.jsonl").write_text('{"kind": "eval"}\n{"kind": "train"}\n{"kind": "train"}\n')
    assert repr(loaded.metrics) == "<3 records: 1 eval, 2 train>"


def test_episodes_are_a_sequence(run: Path) -> None:
    episodes, records = finqa.load_run(run).episodes, list(read_jsonl(run / "trajectories.jsonl"))
    assert len(episodes) == len(records) == 6
    assert [each.record for each in episodes] == records and episodes[-1].record == records[-1]
    first = episodes[0]
    assert first.number == 1 and episodes[first.id] == first and first.truth == records[0]["truth"] != ""
    assert first.messages[0].content == records[0]["messages"][0]["content"] and len(first.turns) >= 1
    assert len(first.messages) > len(records[0]["messages"]), "what was said follows the opening"
    some = episodes[1:4]
    assert [each.number for each in some] == [2, 3, 4] and some[-1].number == 4
    found = episodes.filter(search=first.id)
    assert [each.id for each in found] == [first.id] and len(some.filter(search=first.id)) == 0
    assert first.question in first.transcript() and f"Right answer: {first.truth}" in first.transcript()
    for wrong, kind in ((6, IndexError), ("eval/none", finqa.DataError), ("1", finqa.UsageError)):
        with pytest.raises(kind):
            _ = episodes[wrong]


def test_episodes_follow_a_run_that_grows_and_leave_a_torn_line_out(run: Path) -> None:
    log = run / "trajectories.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    episodes = finqa.load_run(run).episodes
    assert len(episodes) == 2
    log.write_bytes(b"".join(lines[:4]))
    assert [each.number for each in episodes] == [1, 2, 3, 4]
    log.write_bytes(lines[0])
    assert [each.number for each in episodes] == [1]
    log.unlink()
    assert len(episodes) == 0


def test_a_damaged_record_is_named_and_hides_nothing_else(run: Path) -> None:
    log = run / "trajectories.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], '{"id": 1}\n', "no json\n", *lines[3:]]))
    loaded = finqa.load_run(run)
    assert loaded.episodes[0].number == 1 and loaded.episodes[5].number == 6
    for place, line in ((1, "line 2"), (2, "line 3")):
        with pytest.raises(finqa.DataError, match=line) as caught:
            _ = loaded.episodes[place]
        assert "correct or remove" in caught.value.remedy
    assert "line 2" in Elements(loaded._repr_html_()).text


def test_tables_have_a_row_each(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = finqa.load_run(run)
    table = loaded.to_pandas()
    assert list(table["id"]) == [each.id for each in loaded.episodes] and table["truth"][0] != ""
    assert table["correct"].mean() == loaded.metrics.to_pandas()["accuracy"][0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(finqa.MissingDependencyError, match="pandas, which is not installed") as caught:
        loaded.to_pandas()
    assert caught.value.remedy == "pip install pandas"


def test_rich_output_executes_nothing(run: Path) -> None:
    log = run / "trajectories.jsonl"
    records: list[dict[str, Any]] = list(read_jsonl(log))
    first = records[0]
    first["id"] = first["explanation"] = first["truth"] = first["task"]["prompt"] = ATTACK
    first["turns"][0] |= {"text": ATTACK, "tool_call": {"name": ATTACK, "arguments": {ATTACK: ATTACK}}}
    first["turns"][0]["observation"] = {"text": ATTACK, "done": False, "is_error": False}
    records[1]["turns"][-1] |= {"text": ATTACK, "tool_call": None}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    hostile = run.parent / "<script>alert(3)</script>".replace("/", "_")
    run.rename(hostile)
    loaded = finqa.load_run(hostile)
    for page in (loaded._repr_html_(), loaded.episodes[0]._repr_html_(), loaded.episodes[1]._repr_html_()):
        found = Elements(page)
        assert found.tags <= TAGS and found.attributes <= {"style"}
        assert "\u202e" not in page and "\x1b" not in page and "alert(" in found.text
    assert "Reward" in loaded.episodes[0].transcript() and "\x1b" not in loaded.episodes[0].transcript()


def test_the_report_of_a_run_is_that_of_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = finqa.load_run(run)
    ours = loaded.report(run.parent / "ours.html")
    document(["report", str(run), "--out", str(run.parent / "theirs.html")], capsys)
    assert ours.stat().st_size == (run.parent / "theirs.html").stat().st_size > 10_000
    assert loaded.report() == run / "report.html"


def test_a_report_has_the_control_of_a_training(tmp_path: Path) -> None:
    run, control = evaluated(tmp_path / "run"), evaluated(tmp_path / "control", shuffled=True)
    page = finqa.load_run(run).report(control=finqa.load_run(control))
    assert '"label":"control"' in page.read_text("utf-8")
    with pytest.raises(finqa.ConfigError, match="was trained on the true rewards"):
        finqa.load_run(run).report(control=evaluated(tmp_path / "true"))
