from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from finqa_cli.commands.shared import output
from finqa_cli.commands.shared.output import emit, plain_table, plural, print_table, screen_width
from finqa_cli.runs import reporter as reporters
from finqa_cli.runs.reporter import NullReporter, Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_is_one_document_and_text_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"path": Path("a"), "word": "é"}, as_json=True, text="unused")
    assert json.loads(capsys.readouterr().out) == {"path": "a", "word": "é"}
    emit({}, as_json=False, text="said")
    emit({}, as_json=False, text=lambda: None)
    emit({}, as_json=False, text=lambda: "made")
    assert capsys.readouterr().out == "said\nmade\n"


ROWS = [("one\ntwo", 1), ("x", None), ("y", 0.123456)]
PLAIN = "name     n\none two  1\nx        -\ny        0.1235\n"


def test_tables_in_pipes_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), ROWS)
    assert capsys.readouterr().out == PLAIN


@pytest.mark.parametrize("no_color", [True, False])
def test_tables_on_terminals_are_the_same(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    print_table(("name",), [("[bold]not markup[/bold]",)])
    print_table(("name", "n"), ROWS)
    assert terminal.getvalue() == f"name\n[bold]not markup[/bold]\n{PLAIN}"


@given(st.lists(st.tuples(st.text(), st.none() | st.integers() | st.booleans() | st.floats()), max_size=5))
def test_a_row_is_always_one_line(rows: list[tuple[object, object]]) -> None:
    assert len(plain_table(("a", "b"), rows).split("\n")) == len(rows) + 1


WORD = st.text(min_size=1, max_size=60) | st.sampled_from(["営業利益の合計", "a/long/path/of/a/file", "-", "0.25"])


@given(
    st.integers(2, 7).flatmap(
        lambda columns: st.lists(
            st.lists(st.lists(WORD, max_size=6).map(" ".join), min_size=columns, max_size=columns),
            min_size=2,
            max_size=6,
        )
    ),
    st.integers(30, 120),
    st.booleans(),
)
def test_a_table_fits_the_screen_and_loses_nothing(cells: list[list[str]], width: int, headed: bool) -> None:
    headers, rows = (cells[0], cells[1:]) if headed else ([], cells)
    wide = plain_table(headers, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        lines = plain_table(headers, rows).split("\n")
    assert max(map(cell_len, lines)) <= width
    shown = Counter("".join("".join(lines).split()))
    assert Counter("".join(wide.split())) <= shown, "every character is there; a block names its columns again"


def test_long_cells_are_wrapped_inside_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [("train", "Train a policy in sandboxes."), ("eval", "Measure it.")]
    assert plain_table(("name", "what it does"), rows).split("\n") == [
        "name   what it does",
        "train  Train a policy in",
        "       sandboxes.",
        "eval   Measure it.",
    ]
    assert plain_table((), rows).split("\n")[1:] == ["       sandboxes.", "eval   Measure it."]
    rows_of_many = [("a", "interval [0.1,", "questions", "companies")]
    assert plain_table(("method", "accuracy", "questions", "companies"), rows_of_many).split("\n") == [
        "method     a",
        "accuracy   interval [0.1,",
        "questions  questions",
        "companies  companies",
    ]


@pytest.mark.parametrize("value", ["", "0", "-5", "wide", "²"])
def test_columns_that_are_no_number_say_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", value)
    assert screen_width() is None


def test_plurals() -> None:
    assert [plural(1, "sandbox"), plural(2, "sandbox"), plural(0, "snapshot")] == [
        "1 sandbox",
        "2 sandboxes",
        "0 snapshots",
    ]


def use(reporter: Reporter) -> None:
    reporter.advance("never started", 1)
    reporter.start("play", 3)
    reporter.line("a [bracketed] line")
    for done in range(1, 4):
        reporter.advance("play", done, reward=0.123456, groups=done)
    reporter.finish("play")
    reporter.finish("play")
    reporter.start("open end", None)
    reporter.finish("open end")


def test_pipes_get_few_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with output.progress() as reporter:
        use(reporter)
        reporter.start("slow", 10)
        for done in range(10):
            now[0] += 2.0
            reporter.advance("slow", done + 1)
        reporter.finish("slow")
        reporter.start("told already", 1)
        now[0] += 6.0
        reporter.advance("told already", 1)
        reporter.finish("told already")
        reporter.start("own lines", 1, own_lines=True)
        now[0] += 6.0
        reporter.advance("own lines", 1)
        reporter.line("step 1: its own line")
        reporter.finish("own lines")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "a [bracketed] line",
        "play: 3/3 in 0 s reward=0.1235 groups=3",
        "open end: 0 in 0 s",
        "slow: 3/10 in 6 s",
        "slow: 6/10 in 12 s",
        "slow: 9/10 in 18 s",
        "slow: 10/10 in 20 s",
        "told already: 1/1 in 6 s",
        "step 1: its own line",
    ]


def test_a_wait_is_not_silent_and_short_work_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ANNOUNCED_AFTER_S", 0.05)
    monkeypatch.setattr(reporters, "ANNOUNCED_AFTER_S", 0.05)
    events: list[tuple[str, Mapping[str, Any]]] = []
    with output.progress() as reporter:
        with reporter.work("short work", on_event=lambda *event: events.append(event)):
            assert [work.text for work in reporter.works] == ["short work"]
        with reporter.work("loading a model", yields=True, on_event=lambda *event: events.append(event)):
            time.sleep(0.2)
            monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.0)
            reporter.advance_work(3, 12)
        monkeypatch.undo()
        monkeypatch.setattr(output, "ANNOUNCED_AFTER_S", 0.05)
        for number in (1, 2):
            with reporter.work(f"update of iteration {number}"):
                time.sleep(0.2)
        reporter.start("eval", 96)
        time.sleep(0.2)
        reporter.drop("eval")
    assert not reporter.works and events == [("phase", {"phase": "loading a model"})]
    assert capsys.readouterr().err.splitlines() == [
        "loading a model ...",
        "loading a model: 3/12 in 0 s",
        "loading a model: 0.2 s",
        "update of iteration 1 ...",
        "update of iteration 1: 0.2 s",
        "eval: 0/96 episodes ...",
    ]


@pytest.mark.parametrize("flag", ["as_json", "quiet"])
def test_nothing_is_said_with_json_or_quiet(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(**{flag: True}) as reporter:
        assert isinstance(reporter, NullReporter)
        use(reporter)
    assert capsys.readouterr() == ("", "")


def test_terminals_get_bars_and_their_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ValueError, match="odd"), output.progress() as reporter:
        assert isinstance(reporter, output.BarReporter)
        use(reporter)
        raise ValueError("odd")
    shown = terminal.getvalue()
    assert "a [bracketed] line" in shown and shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize(("name", "value"), [("CI", "1"), ("TERM", "dumb")])
def test_ci_and_dumb_terminals_get_plain_lines(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv(name, value)
    with output.progress() as reporter:
        assert isinstance(reporter, output.PlainReporter)
