"""The source distribution and the wheel: what is in them, and that the wheel works on every Python that is here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from finqa_cli import __version__

ROOT = Path(__file__).parents[2]
PACKAGES = {"finqa": ROOT / "finqa", "finqa_cli": ROOT / "finqa_cli", "finqa_plugins": ROOT / "plugins/finqa_plugins"}
MOST_BYTES = 20_000_000
"""Of either file; 13 MB are the embedded policies."""


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    for target in ("sdist", "wheel"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def tracked(folder: Path) -> set[str]:
    """Files below a folder that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=folder, capture_output=True, check=True, text=True)
    return {name for name in listed.stdout.split("\0") if name}


def test_the_wheel_has_the_packages_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    _, path = distributions
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        described = Parser().parsestr(wheel.read(metadata).decode("utf-8"))
        licence = wheel.read(metadata.replace("METADATA", "licenses/LICENSE"))
    assert names == {f"{package}/{name}" for package, folder in PACKAGES.items() for name in tracked(folder)}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert (described["Name"], described["License-Expression"]) == ("finqa", "Apache-2.0")
    assert described["Requires-Python"] == ">=3.11" and described["Description-Content-Type"] == "text/markdown"
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert path.stat().st_size < MOST_BYTES


def test_the_source_distribution_has_what_the_wheel_is_built_from_and_the_documents(
    distributions: tuple[Path, Path],
) -> None:
    path, _ = distributions
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    sources = {str((folder / name).relative_to(ROOT)) for folder in PACKAGES.values() for name in tracked(folder)}
    documents = {"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "CITATION.cff", "constraints.txt"}
    assert sources | documents | {f"docs/{name}" for name in tracked(ROOT / "docs")} <= names
    assert not any(name.startswith(("tests/", ".", "dist/")) and name != ".gitignore" for name in names)
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")))
def test_each_distribution_in_plugins_has_its_package_and_an_entry_point(name: str, tmp_path: Path) -> None:
    folder = ROOT / "plugins" / name
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {each for each in wheel.namelist() if ".dist-info/" not in each}
        (metadata,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        described = Parser().parsestr(wheel.read(metadata).decode("utf-8"))
        entry_points = wheel.read(metadata.replace("METADATA", "entry_points.txt")).decode("utf-8")
    assert names == {f"{name}/{each}" for each in tracked(folder) if each.endswith((".py", "py.typed"))}
    assert described["Name"] == name.replace("_", "-") and described["Version"] == __version__
    assert f"finqa=={__version__}" in described.get_all("Requires-Dist", [])
    assert entry_points.startswith("[finqa]\n") and f"{name}.plugin" in entry_points


def interpreter(version: str) -> str | None:
    """Path of a Python, on the PATH or among the versions of pyenv."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_works_in_an_empty_environment(
    version: str, distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    """Packages come from the index that pip is set to."""
    _, path = distributions
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    place = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", place], check=True)
    wheel = f"finqa[openenv] @ {path.as_uri()}"
    subprocess.run([place / "bin/pip", "install", "--quiet", wheel], check=True, timeout=900)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FINQA_HOME": str(tmp_path / "home")}

    def finqa(*words: str) -> str:
        command = [place / "bin/finqa", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert finqa("--version") == f"finqa {path.name.split('-')[1]}\n"
    plugins = json.loads(finqa("plugins", "--json"))
    assert "finqa" in json.dumps(plugins)
    assert "qwen3-14b" in finqa("config", "list")
    assert "Reward 1: " in finqa("play", "--engine", "scripted", "--seed", "1")
    assert json.loads(finqa("eval", "scripted", "--limit", "3", "--json"))["accuracy"] == 1.0
