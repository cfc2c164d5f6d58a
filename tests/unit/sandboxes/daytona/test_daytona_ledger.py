"""Names on disk: before the sandbox, after a kill, torn, and gone in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.errors import StorageError
from finqa_plugins.sandboxes.daytona.daytona_ledger import Ledger, forget, open_names

RUN = {"finqa.run": "r"}


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_name_is_on_disk_before_anything_else_and_goes_with_its_sandbox(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    await ledger.opened("finqa-a", RUN)
    await ledger.opened("finqa-b", RUN)
    assert {(name.name, name.owned, name.labels["finqa.run"]) for name in open_names(tmp_path)} == {
        ("finqa-a", True, "r"),
        ("finqa-b", True, "r"),
    }
    await ledger.gone(["finqa-a", "never opened"])
    assert [name.name for name in open_names(tmp_path)] == ["finqa-b"]
    ledger.close()
    assert [(name.name, name.owned) for name in open_names(tmp_path)] == [("finqa-b", False)]
    forget(open_names(tmp_path))
    assert files(tmp_path) == []


async def test_a_name_is_durable_before_its_sandbox_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: durable.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    ledger = Ledger(tmp_path)
    await ledger.opened("finqa-a", RUN)
    assert durable == files(tmp_path)
    ledger.close()


async def test_a_file_without_open_names_is_removed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    await ledger.opened("finqa-a", RUN)
    await ledger.gone(["finqa-a"])
    ledger.close()
    ledger.close()
    assert files(tmp_path) == []


def test_names_of_a_killed_process_are_open_and_without_an_owner(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from finqa_plugins.sandboxes.daytona.daytona_ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "asyncio.run(ledger.opened('finqa-a', {'finqa.run': 'r'}))\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    assert [name.owned for name in open_names(tmp_path)] == [True]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [(name.name, name.owned) for name in open_names(tmp_path)] == [("finqa-a", False)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(cut=st.integers(min_value=0, max_value=400), garbage=st.binary(max_size=30))
def test_a_torn_line_costs_no_other(tmp_path: Path, cut: int, garbage: bytes) -> None:
    path = tmp_path / "1-torn.jsonl"
    whole = b'\n{"name":"finqa-a","labels":{},"asked":1.0}\n'
    path.write_bytes(whole + whole.replace(b"finqa-a", b"finqa-b")[:cut] + garbage + whole.replace(b"-a", b"-c"))
    names = {name.name for name in open_names(tmp_path)}
    assert {"finqa-a", "finqa-c"} <= names <= {"finqa-a", "finqa-b", "finqa-c"}


async def test_a_folder_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ledger = Ledger(tmp_path / "file")
    with pytest.raises(StorageError, match="sandbox ledger"):
        await ledger.opened("finqa-a", RUN)
    assert not ledger.open_names


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    await ledger.opened("finqa-a", RUN)
    descriptor = ledger._descriptor
    assert descriptor is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)
    with pytest.raises(StorageError):
        await ledger.opened("finqa-b", RUN)
    ledger.close()
    assert [name.name for name in open_names(tmp_path)] == ["finqa-a"]
