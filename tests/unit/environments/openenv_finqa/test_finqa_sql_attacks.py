"""Hostile SQL against the guarded runner: nothing is written, nothing else is read, and it ends in time."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.hostile_sql import ATTACKS, FILE, TABLE, random_statements
from fixtures.tiny_snapshot import CANARY, write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server import sql_execution
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import FULL, QueryRunner

LONGEST_REPLY = 16_384
MAX_GROWTH_MIB = 64
DEADLINE_S = 0.1  # of these tests, so that they are quick; what counts is how far a query gets beyond it
SLACK_S = 60.0  # machines that run tests are busy; an attack that is not cut off takes forever
EVERYTHING = f'SELECT line_item, "2024", "2023", margin FROM {TABLE} WHERE 1'
ALLOWED = {"master", "schema", "comment-open", "reindex", "like-wide", "huge-in-list", "cross-join-64", "many-calls"}
ALLOWED |= {"many-wide-columns", "union-chain", "window-growth", "replace-long", "compare-long", "digits-long"}
ALLOWED |= {"json-each", "json-tree", "json-patch", "pragma-of-truth", "pragma-of-temp", "temp-schema-unread"}


class Target:
    """A snapshot with its runner, and whether anything about it has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runner = QueryRunner(SnapshotReader(write_tiny_snapshot(folder / "snapshot").path))
        self.before = self._fingerprint()

    def reply(self, query: str) -> str:
        began = time.perf_counter()
        reply = self.runner.run("acme", TABLE, query)
        assert time.perf_counter() - began < DEADLINE_S + SLACK_S, query
        assert len(reply.encode()) <= LONGEST_REPLY, query
        assert CANARY not in reply
        assert "9000" not in reply or "9000" in query  # the one figure of the table beside this one
        return reply

    def unchanged(self) -> bool:
        return self._fingerprint() == self.before and not Path("/tmp", FILE).exists()

    def _fingerprint(self) -> tuple[str, dict[str, str]]:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        digests = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        return self.runner.run("acme", TABLE, EVERYTHING), digests


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sql_execution, "FULL", dataclasses.replace(FULL, seconds=DEADLINE_S))
        before = resident_mib()
        yield Target(folder)
        gc.collect()
        assert resident_mib() - before <= MAX_GROWTH_MIB


def resident_mib() -> float:
    """Of this process, now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing(target: Target, name: str) -> None:
    reply = target.reply(ATTACKS[name])
    assert reply.startswith("Error executing query: ") or name in ALLOWED
    assert target.unchanged()


def test_there_are_attacks_enough() -> None:
    assert len(ATTACKS) >= 24
    assert len(set(ATTACKS.values())) == len(ATTACKS)


def test_attacks_leave_the_next_query_alone(target: Target) -> None:
    expected = target.runner.run("acme", TABLE, EVERYTHING)
    for query in list(ATTACKS.values())[::3]:
        target.reply(query)
        assert target.runner.run("acme", TABLE, EVERYTHING) == expected


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_random_statements_get_a_reply(target: Target, count: int) -> None:
    answered = sum(target.reply(query).startswith("[") for query in random_statements(7, count))
    assert count / 10 < answered < count  # both kinds are tried
    assert target.unchanged()
