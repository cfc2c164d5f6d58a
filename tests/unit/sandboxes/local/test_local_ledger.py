"""The files that name running servers: cheap to change, and readable while they are written."""

from __future__ import annotations

import itertools
import os
import resource
from pathlib import Path

import pytest

from finqa_cli.errors import StorageError
from finqa_cli.processes import start_time
from finqa_plugins.sandboxes.local.local_ledger import Ledger, SandboxEntry, ServerEntry

LABELS = {"finqa.run": "a run"}


def this_process(**sandboxes: SandboxEntry) -> ServerEntry:
    """This test itself as a server."""
    started = start_time(os.getpid()) or 0
    return ServerEntry(id="local-test", pid=os.getpid(), started=started, port=1, sandboxes=sandboxes)


def sandbox(created: float) -> SandboxEntry:
    return SandboxEntry(labels=LABELS, created=created)


def test_changes_are_seen_by_others(tmp_path: Path) -> None:
    file = Ledger(tmp_path).create(this_process(a=sandbox(1.0)))
    file.add("b", sandbox(2.0))
    file.remove("a")
    file.close()
    assert list(Ledger(tmp_path).entries()) == [this_process(b=sandbox(2.0))]


def test_a_change_costs_the_same_beside_thousands(tmp_path: Path) -> None:
    file = Ledger(tmp_path).create(this_process())
    path = tmp_path / f"{os.getpid()}.json"
    sizes = [path.stat().st_size]
    for number in range(1000):
        file.add(f"local-test-{number:04}", sandbox(1.0))
        sizes.append(path.stat().st_size)
    file.close()
    assert len({after - before for before, after in itertools.pairwise(sizes)}) == 1


def test_a_line_that_was_cut_short_is_skipped(tmp_path: Path) -> None:
    file = Ledger(tmp_path).create(this_process(a=sandbox(1.0)))
    file.close()
    with (tmp_path / f"{os.getpid()}.json").open("a", encoding="utf-8") as text:
        text.write('{"add": "b", "lab')
    assert list(Ledger(tmp_path).entries()) == [this_process(a=sandbox(1.0))]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    file = Ledger(tmp_path).create(this_process())
    path = tmp_path / f"{os.getpid()}.json"
    file.add("a", sandbox(1.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(StorageError, match="Cannot write the sandbox ledger"):
            file.add("b", sandbox(2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.add("c", sandbox(3.0))
    file.close()
    assert list(Ledger(tmp_path).entries()) == [this_process(a=sandbox(1.0), c=sandbox(3.0))]


@pytest.mark.parametrize("text", ["", "\n", "[]\n", "{}\n", "7", '{"pid": 1}\n', "\x00"])
def test_files_that_are_not_ours_are_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.write_text(text, encoding="utf-8")
    assert not list(Ledger(tmp_path).entries()) and path.exists()
