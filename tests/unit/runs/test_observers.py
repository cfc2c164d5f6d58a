"""Plugins look on: none of them ends a run, and none silences another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from finqa_cli.extend import Registry, hookimpl
from finqa_cli.runs import tracking
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.tracking import Observers


class Heard(NullReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[object] = []

    @hookimpl
    def on_eval(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        self.seen.append((iteration, metrics))

    @hookimpl
    def on_run_end(self, status: str) -> None:
        self.seen.append(status)


class Broken(Watcher):
    @hookimpl
    def on_eval(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("of a stranger")


def test_a_plugin_that_raises_is_named_once_and_silences_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, reporter, first, broken, last = Registry([]), Heard(), Watcher(), Broken(), Watcher()
    for name, plugin in (("first", first), ("broken", broken), ("last", last)):
        registry.manager.register(plugin, name=name)
    monkeypatch.setattr(tracking, "registry", lambda: registry)
    observers = Observers(reporter)
    observers.notify("on_eval", iteration=1, metrics={})
    observers.notify("on_eval", iteration=2, metrics={})
    observers.notify("on_run_end", run_id="run", status="completed")
    assert first.seen == last.seen == [(1, {}), (2, {}), "completed"] and broken.seen == ["completed"]
    (line,) = reporter.lines
    place = f"{__file__}:{Broken.on_eval.__code__.co_firstlineno + 2}"
    failed = "Plugin 'broken' failed in on_eval, which is not called again"
    assert line == f"{failed}: it raised ZeroDivisionError: of a stranger ({place})"
