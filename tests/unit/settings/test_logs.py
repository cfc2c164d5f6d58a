from __future__ import annotations

import json
import logging
import os
import threading

import pytest
import structlog

from finqa_cli import logs
from finqa_cli.errors import ConfigError


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    structlog.reset_defaults()


def test_logs_go_to_stderr_as_json_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "dtn_0123456789"
    logs.configure({"FINQA_LOG_LEVEL": "info", "FINQA_LOG_FORMAT": "json", "DAYTONA_API_KEY": secret})
    log = structlog.get_logger("test")
    log.info("calling", url=f"https://x/?key={secret}", api_key="short", nested={"token": "t"}, items=[secret], n=3)
    try:
        raise ValueError(f"refused {secret}")
    except ValueError:
        log.exception("failed")
    captured = capsys.readouterr()
    assert captured.out == "" and secret not in captured.err and '"short"' not in captured.err
    first, second = map(json.loads, captured.err.splitlines())
    assert first["n"] == 3 and first["event"] == "calling" and "refused" in second["exception"]


def test_what_libraries_log_and_threads_raise_has_no_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setenv("SERVICE_API_KEY", "CANARY-by-name")
    logs.configure({})
    address = "http://me:CANARY@h/?token=CANARY"
    assert logging.lastResort is not None
    record = logging.LogRecord("library", logging.ERROR, "file", 1, "cannot reach %s", (address,), None)
    assert "cannot reach http://" in logging.lastResort.format(record)
    assert "CANARY" not in logging.lastResort.format(record)

    def fails() -> None:
        raise RuntimeError(f"cannot reach {address} with {os.environ['SERVICE_API_KEY']}")

    thread = threading.Thread(target=fails, name="reader")
    thread.start()
    thread.join()
    printed = capsys.readouterr().err
    assert "Exception in thread reader:" in printed and "RuntimeError: cannot reach http://" in printed
    assert "CANARY" not in printed


def test_the_level_filters(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure({})
    structlog.get_logger("test").info("quiet")
    structlog.get_logger("test").warning("loud")
    assert "loud" in (printed := capsys.readouterr().err) and "quiet" not in printed


@pytest.mark.parametrize("name", ["FINQA_LOG_LEVEL", "FINQA_LOG_FORMAT", "FINQA_DEBUG"])
def test_an_unknown_value_is_explained(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        logs.configure({name: "loudest"})
