"""Damaged snapshots: the server does not start on one, and a user reads which it is and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_plugins.environments.openenv_finqa.server.run_server import main
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotError, SnapshotReader

pytestmark = pytest.mark.usefixtures("_warm_commands")

EX_DATAERR = 65


def tampered(folder: Path) -> None:
    path = folder / "truth.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"answer": "', '"answer": "1'), encoding="utf-8")


def truncated(folder: Path) -> None:
    path = folder / "tables.sqlite"
    path.write_bytes(path.read_bytes()[:5000])


def manifest_with(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing-tables": (lambda folder: (folder / "tables.sqlite").unlink(), "tables.sqlite"),
    "missing-truth": (lambda folder: (folder / "truth.jsonl").unlink(), "truth.jsonl"),
    "missing-manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
    "tampered-truth": (tampered, "truth.jsonl: the sha256 differs"),
    "truncated-tables": (truncated, "tables.sqlite: the sha256 differs"),
    "empty-tasks": (lambda folder: (folder / "tasks.jsonl").write_bytes(b""), "tasks.jsonl: the sha256 differs"),
    "broken-manifest": (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is damaged"),
    "manifest-is-a-list": (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is damaged"),
    "manifest-names-no-files": (manifest_with(files={}), "manifest.json is damaged"),
    "binary-manifest": (
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
        "manifest.json is damaged",
    ),
    "newer-format": (manifest_with(schema_version=2), "its format is '2', this version of finqa reads 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_the_server_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, reason = DAMAGE[name]
    folder = write_tiny_snapshot(tmp_path).path
    damage(folder)
    assert main({"FINQA_SNAPSHOT": str(folder), "FINQA_SNAPSHOT_NAME": "mine"}) == EX_DATAERR
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is not a readable snapshot" in told
    assert reason in told
    assert told.endswith("Build 'mine' again: finqa snapshot build --snapshot-name mine --data DIR\n")


def test_a_sound_one_opens(tmp_path: Path) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    assert len(SnapshotReader(snapshot.path, name="tiny", digest=snapshot.digest).questions) == 5


@pytest.mark.parametrize(("folder", "name"), [("mine/0123456789ab", "mine"), ("somewhere", "somewhere")])
def test_the_name_is_found_from_the_folder(tmp_path: Path, folder: str, name: str) -> None:
    with pytest.raises(SnapshotError, match=f"finqa snapshot build --snapshot-name {name} --data DIR$"):
        SnapshotReader(tmp_path / folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged-home")
    LocalSnapshots(folder).build_embedded()
    return folder


@pytest.mark.parametrize("damage", [tampered, DAMAGE["missing-tables"][0]])
def test_a_user_reads_one_line_and_the_command(home: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(home, tmp_path / "home")
    damage(next((tmp_path / "home" / "snapshots" / DEFAULT_NAME).glob("*/manifest.json")).parent)
    command = [sys.executable, "-m", "finqa_cli", "play", "--engine", "scripted"]
    variables = {**os.environ, "FINQA_HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == EX_DATAERR, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.endswith("\nfix: finqa snapshot build\n")
