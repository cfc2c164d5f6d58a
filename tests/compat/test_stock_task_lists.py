"""The tasks of an environment, listed by OpenEnv's own Task API where the version has one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compat.stock_versions import StockOpenEnv

from finqa_cli.app import main

LISTED = Path(__file__).parents[1] / "fixtures" / "openenv_listed"


def test_the_tasks_that_a_server_lists_are_played(
    stock: StockOpenEnv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"module": LISTED, "python": stock.python, "tasks": "server"}
    where = [word for name, value in options.items() for word in ("--set", f"environment.options.{name}={value}")]
    play = ["eval", "random", "--environment=openenv", *where, "--sandboxes=1", "--split=test", "--json"]
    assert main([*play, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    records = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert sorted(record["task"]["id"] for record in records) == ["hard_00000", "hard_00001"]
    assert sorted(record["messages"][-1]["content"] for record in records) == ["five", "six"]
