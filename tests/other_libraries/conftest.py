"""Without `make test-libraries`, which names the interpreters, every test of this folder skips."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from other_libraries.interpreters import PYTHONS

PLAYED = Path(__file__).with_name("played")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each command waits some seconds for the imports of a library, twice."""
    for item in items:
        if item.nodeid.startswith("tests/other_libraries/"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """The flags that choose an environment of `played`, which becomes the working directory, and an interpreter."""
    return lambda source: _flags(source, source.partition(":")[0], monkeypatch, tmp_path)


@pytest.fixture
def named4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """The same with the interpreter of verifiers 0.4."""
    return lambda source: _flags(source, "verifiers4", monkeypatch, tmp_path)


def _flags(source: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    python = PYTHONS[library]
    if python is None:
        pytest.skip(f"{library} is not there: run `make test-libraries`")
    folder = shutil.copytree(PLAYED, tmp_path / "played", dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return [f"--environment={source}", f"--set=environment.options.python={python}"]
