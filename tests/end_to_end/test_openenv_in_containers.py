"""An OpenEnv environment in containers: its folder built to an image by its own Dockerfile, tested, evaluated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import failure
from fixtures.containers import FIXTURES, Containers, guess_dockerfile, working_containers

from finqa_cli.app import main


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    with working_containers() as containers:
        yield containers
        assert containers.names() == []


@pytest.mark.slow  # a server of OpenEnv takes seconds to start, and three do
def test_a_folder_is_built_into_an_image_and_played_in_containers(
    containers: Containers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "openenv_guess"
    shutil.copytree(FIXTURES / "openenv_guess", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "server" / "Dockerfile").write_text(guess_dockerfile())
    options = [f"sandbox.options.{name}={json.dumps(value)}" for name, value in containers.options.items()]
    sets = [f"data.home={tmp_path / 'home'}", "environment.name=openenv", "sandbox.options.containers=2", *options]
    here = ["--sandbox=docker", *(word for each in sets for word in ("--set", each))]
    module = ["--set", f"environment.options.module={folder}"]
    play = ["--sandboxes=2", "--limit=4", "--max-steps=30", "--split=train"]

    status, said = failure(["eval", "random", *here, *module, *play, f"--run-dir={tmp_path / 'early'}"], capsys)
    assert status == 65 and "There is no image of 'openenv_guess'" in said
    build = f"finqa snapshot build --sandbox docker --set environment.name=openenv {' '.join(module)}"
    assert build in said.replace("\n", " "), "which is the command below"
    assert main(["snapshot", "build", *here, *module, "--json"]) == 0
    built = json.loads(capsys.readouterr().out)["image"]
    try:
        assert built["new"] and built["boot_test"]["turns"] > 0
        image = ["--set", f"environment.options.image={built['name']}"]
        run = ["eval", "random", *here, *image, *play, f"--run-dir={tmp_path / 'run'}"]
        assert main(run) == 0
        records = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
        assert len(records) == 4 and not any("_error" in record["status"] for record in records)
        assert any(record["status"] == "completed" for record in records)
        assert containers.names() == [], "nothing is left"
    finally:
        assert main(["snapshot", "delete", "openenv_guess", *here, "--json"]) == 0
