"""The folder of an OpenEnv environment as an image of Daytona: built, tested, evaluated in several sandboxes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import failure

from finqa_cli.app import main
from finqa_testing import LoopbackConfig, LoopbackProcess

pytestmark = pytest.mark.thorough

GUESS = Path(__file__).parents[1] / "fixtures" / "openenv_guess"
SERVERS = 2


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


DOCKERFILE = """ARG BASE_IMAGE=ghcr.io/meta-pytorch/openenv-base:latest
FROM ${BASE_IMAGE} AS builder
WORKDIR /app
COPY . /app/env
RUN uv sync --no-editable
FROM ${BASE_IMAGE}
WORKDIR /app
COPY --from=builder /app/env/.venv /app/.venv
COPY --from=builder /app/env /app/env
CMD ["sh", "-c", "cd /app/env && uvicorn server.app:app --host 0.0.0.0 --port 8000"]
"""
PROJECT = """[build-system]
requires = ["setuptools>=45"]
build-backend = "setuptools.build_meta"
[project]
name = "openenv-number"
version = "0.1.0"
dependencies = ["openenv-core[core]>=0.2.2"]
[tool.setuptools]
packages = ["number_env", "number_env.server"]
package-dir = { "number_env" = ".", "number_env.server" = "server" }
"""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProcess]:
    """A Daytona on loopback that this process's commands use."""
    with LoopbackProcess(LoopbackConfig(servers=SERVERS)) as loopback, loopback.trusted():
        for name, value in loopback.environment.items():
            monkeypatch.setenv(name, value)
        yield loopback


def build_and_evaluate(where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Build an image and evaluate in it without a fault; return the build's log."""
    here = ["--environment=openenv", *where, "--sandbox=daytona", "--set", f"data.home={tmp_path / 'home'}"]
    assert main(["snapshot", "build", *here]) == 0
    log = capsys.readouterr().err
    play = ["eval", "random", "--sandboxes=1", "--limit=4", "--max-steps=30", "--split=train", "--json"]
    assert main([*play, *here, "--run-dir", str(tmp_path / "run")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["episodes"], report["faults"]) == (4, 0) and report["reward_mean"] != 0
    return log


@pytest.mark.slow
def test_an_image_is_built_from_the_folders_own_dockerfile(
    tmp_path: Path, cloud: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "number_env"
    shutil.copytree(GUESS, folder)
    (folder / "server" / "Dockerfile").write_text(DOCKERFILE)
    where = ["--set", f"environment.options.module={folder}"]
    log = build_and_evaluate(where, tmp_path, capsys)
    assert "FROM ${BASE_IMAGE} AS builder" in log and "pip install" not in log
    assert "/app/env/.venv is not in builder" in log, "what the loopback does not carry out is in its log"

    (folder / "server" / "Dockerfile").write_text(DOCKERFILE + "COPY src/openenv /x\n")
    status, said = failure(["snapshot", "build", "--environment=openenv", *where, "--sandbox=daytona"], capsys)
    assert status == 78 and "COPY src/openenv /x" in said and "recipe=packages" in said


@pytest.mark.slow
def test_the_wheel_of_the_folders_project_is_installed(
    tmp_path: Path, cloud: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a-clone-of-number"
    shutil.copytree(GUESS, folder)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "server" / "number.py").write_text("from number_env.server.app import app\n")
    (folder / "openenv.yaml").write_text("app: server.number:app\n")
    log = build_and_evaluate(["--set", f"environment.options.module={folder}"], tmp_path, capsys)
    assert "Installed ./server/number_env" in log
