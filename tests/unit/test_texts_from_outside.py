"""Texts from outside on their way to people: printable and cut, with secrets masked first."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli import boundary, logs
from finqa_cli.commands.shared.output import PlainReporter
from finqa_cli.errors import LONGEST, DataError, FinqaError, legible, printable
from finqa_cli.masking import MASK

HOSTILE = "\x1b[31m" * 10_000 + "\x9b2J\u202e\ud800\x00\r\b" + "X" * 100_000
texts = st.text(st.characters()) | st.text("\x1b\x9b\u202eab\n", min_size=0, max_size=20_000)


def is_safe(text: str) -> bool:
    """Whether a text has no characters that control a terminal, or that cannot be encoded."""
    text.encode()
    return not any(
        (ord(each) < 32 and each not in "\n\t") or 127 <= ord(each) < 160 or each in "\u202e" for each in text
    )


@given(texts, st.integers(101, 5000))
def test_any_text_becomes_printable_and_short(text: str, most: int) -> None:
    shown = legible(text, most)
    assert len(shown) <= most and is_safe(shown) and is_safe(printable(text))
    assert legible(shown, most) == shown
    if len(printable(text)) <= most:
        assert shown == printable(text)


def test_an_error_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError(HOSTILE, remedy="finqa \x1b[2J")
    error.problems = [{"row": 1, "reason": HOSTILE}]
    assert boundary.report(error, ["eval", "--json"], ["eval"]) == 65
    captured = capsys.readouterr()
    assert is_safe(captured.err) and len(captured.err) < LONGEST + 200
    assert is_safe(captured.out) and len(captured.out) < 2 * LONGEST + 1000
    assert "characters in all" in json.loads(captured.out)["error"]["message"]


def test_an_unexpected_error_and_its_traceback_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        boundary.report(error, ["eval", "--debug"], ["eval"])
    assert is_safe(capsys.readouterr().err)


def test_a_secret_at_the_cut_is_masked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "key-0123456789abcdef")
    for before in range(2900, 3020, 7):
        boundary.report(FinqaError("x" * before + " key-0123456789abcdef " + "y" * 9000), [], [])
        printed = capsys.readouterr().err
        assert "0123" not in printed and "cdef" not in printed
    assert MASK in legible(MASK)


def test_logs_and_progress_are_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure({"FINQA_LOG_FORMAT": "json"})
    structlog.get_logger("test").warning("said", reason=HOSTILE, nested={"reason": HOSTILE})
    PlainReporter().line(HOSTILE)
    record = logging.LogRecord("library", logging.WARNING, "file", 1, "%s", (HOSTILE,), None)
    assert logging.lastResort is not None
    stream.write(logging.lastResort.format(record))
    assert is_safe(stream.getvalue())
