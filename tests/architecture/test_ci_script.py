"""`.ci/run` says at once what would end it in the middle."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"


@pytest.mark.parametrize(
    ("free", "installed", "lacking"),
    [
        ({"checkout": 7}, [], "{checkout} has 7 GiB of free disk, but 8 are needed."),
        ({"temporary": 1}, [], "{temporary} has 1 GiB of free disk, but 2 are needed."),
        ({"checkout": 5}, [".venv-vllm"], "{checkout} has 5 GiB of free disk, but 6 are needed."),
        ({"checkout": 6}, [".venv-vllm"], ""),
        ({"checkout": 8, "temporary": 2}, [], ""),
    ],
)
def test_too_little_disk_is_told_before_anything_is_made(
    free: dict[str, int], installed: list[str], lacking: str, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("checkout", "temporary")}
    for folder in (folders["checkout"] / ".ci", folders["temporary"], tmp_path / "bin"):
        folder.mkdir(parents=True)
    shutil.copy(SCRIPT, folders["checkout"] / ".ci" / "run")
    for environment in (".venv", *installed):
        (folders["checkout"] / environment).mkdir()
        (folders["checkout"] / environment / ".installed").touch()
    answers = "".join(f"{folders[name]}) echo x 1 1 {size * 2**20 + 9} 1% /;; " for name, size in free.items())
    programs = {"df": f'case "$2" in {answers}*) echo x 1 1 99999999 1% /;; esac', "make": "exit 9", "bwrap": ":"}
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folders["temporary"])}
    ended = subprocess.run(
        [folders["checkout"] / ".ci" / "run"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == (f".ci/run: {lacking.format(**folders)}\n" if lacking else "")
    assert ended.returncode == (1 if lacking else 9), "the stand-in for make was called only where there is enough"
