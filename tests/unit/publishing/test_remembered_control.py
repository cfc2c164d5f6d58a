"""A control that a report showed is shown again by the next report of the same run."""

from __future__ import annotations

from pathlib import Path

from finqa_cli.publishing.report.run_report import remembered_control
from finqa_cli.runs.durable_files import write_json


def test_a_control_is_remembered_while_it_exists(tmp_path: Path) -> None:
    run, control = tmp_path / "run", tmp_path / "control"
    for folder in (run, control):
        folder.mkdir()
    assert remembered_control(run) is None
    write_json(run / "report_control.json", {"control": "../control"})
    assert remembered_control(run) is None, "it is no run any more"
    write_json(control / "run.json", {"command": "train"})
    found = remembered_control(run)
    assert found is not None and found.resolve() == control.resolve()
