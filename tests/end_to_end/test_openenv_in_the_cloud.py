"""The folder of an OpenEnv environment as an image of Daytona: built, tested, evaluated in several sandboxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.command_calls import failure

from finqa_cli.app import main
from finqa_cli.testing import LoopbackConfig, LoopbackProcess

GUESS = Path(__file__).parents[1] / "fixtures" / "openenv_guess"
SERVERS = 3


def test_a_folder_is_built_into_an_image_and_played_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--set", "environment.name=openenv", "--set", f"environment.options.module={GUESS}"]
    here = [*where, "--sandbox=daytona", "--set", f"data.home={tmp_path / 'home'}"]
    play = ["eval", "random", *here, "--sandboxes=2", "--limit=4", "--max-steps=30", "--split=train"]
    with LoopbackProcess(LoopbackConfig(servers=SERVERS)) as loopback, loopback.trusted():
        for name, value in loopback.environment.items():
            monkeypatch.setenv(name, value)
        status, said = failure([*play, "--run-dir", str(tmp_path / "early")], capsys)
        assert status == 65 and "no ready image" in said
        fix = f"--sandbox daytona --set environment.name=openenv --set environment.options.module={GUESS}"
        assert f"finqa snapshot build {fix}" in said.replace("\n", " "), "which is the command below"

        assert main(["snapshot", "build", *here, "--json"]) == 0
        built = json.loads(capsys.readouterr().out)["image"]
        assert built["name"].startswith("finqa-openenv_guess-") and built["new"]
        assert main(["snapshot", "build", *here, "--json"]) == 0
        assert not json.loads(capsys.readouterr().out)["image"]["new"]

        assert main([*play, "--run-dir", str(tmp_path / "run")]) == 0
        records = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
        assert len(records) == 4 and not any("_error" in record["status"] for record in records)
        assert any(record["status"] == "completed" for record in records)
        assert loopback.control.stats()["sandboxes"] == 0, "nothing is left"
