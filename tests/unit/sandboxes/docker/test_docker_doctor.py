"""What `finqa doctor` and `finqa plugins` say about containers; the programs are scripts that reply like real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.types import Check
from finqa_plugins.sandboxes.docker.config import readiness
from finqa_plugins.sandboxes.docker.docker_doctor import checks

DOCKER = """#!/bin/sh
case "$*" in
--version) echo "Docker version 28.2.2, build e6534b4" ;;
"image inspect stock:1") echo '[{"Id": "sha256:12"}]' ;;
"image inspect"*) echo "[]"; echo "Error: No such image" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, script: str) -> None:
    (folder / "docker").write_text(script)
    (folder / "docker").chmod(0o755)


def settings(image: str = "", **options: Any) -> dict[str, Any]:
    return {
        "sandbox": {"name": "docker", "options": options},
        "environment": {"name": "openenv", "options": {"image": image} if image else {}},
    }


def test_a_daemon_that_answers_is_named_with_its_version(programs: Path) -> None:
    install(programs, DOCKER)
    assert checks(settings()) == [Check(name="docker", status="ok", detail="docker 28.2.2 runs containers")]
    assert readiness(settings()) == []


def test_a_daemon_that_does_not_answer_fails(programs: Path) -> None:
    install(programs, DOCKER + 'if [ "$1" = ps ]; then echo "Cannot connect to the Docker daemon" >&2; exit 1; fi\n')
    (found,) = checks(settings())
    assert (found.status, found.remedy) == ("fail", "sudo apt-get install podman") and "Cannot connect" in found.detail
    (ready,) = readiness(settings())
    assert (ready.status, ready.detail) == ("fail", "docker: installed, but cannot list containers")
    assert ready.remedy == "finqa doctor --sandbox docker"


def test_without_a_program_both_fail(programs: Path) -> None:
    (found,) = checks(settings())
    assert found.status == "fail" and "docker or podman" in found.detail and "podman" in found.remedy
    (ready,) = readiness(settings())
    assert (ready.status, ready.detail) == ("fail", "needs docker or podman")
    (ready,) = readiness(settings(command="nerdctl"))
    assert ready.detail == "needs nerdctl"


@pytest.mark.parametrize(
    ("image", "options", "status", "told"),
    [
        ("stock:1", {}, "ok", "stock:1 is on this machine"),
        ("other:1", {}, "warn", "it is pulled when the first container starts"),
        ("other:1", {"pull": "never"}, "fail", "There is no image other:1 on this machine."),
    ],
)
def test_an_image_is_looked_for(programs: Path, image: str, options: dict[str, Any], status: str, told: str) -> None:
    install(programs, DOCKER)
    found = checks(settings(image, **options))[1]
    assert (found.name, found.status) == ("docker image", status) and told in found.detail
    assert status == "ok" or found.remedy.startswith("docker pull other:1")
