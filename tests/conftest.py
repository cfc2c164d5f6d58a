"""What every test may rely on: no settings, keys or caches of the person who runs them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from finqa_cli.settings.sources import BARE_NAMES

for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

PRIVATE = (*BARE_NAMES, "DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET", "OPENAI_API_KEY", "CI", "NO_COLOR")


@pytest.fixture(scope="session")
def finqa_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home folder for the whole test session, so that the embedded snapshot is built once."""
    return tmp_path_factory.mktemp("finqa-home")


@pytest.fixture(autouse=True)
def _neutral_environment(monkeypatch: pytest.MonkeyPatch, finqa_home: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name in PRIVATE or name.startswith("FINQA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FINQA_HOME", str(finqa_home))
    structlog.reset_defaults()  # a command that an earlier test ran in this process may have set a level
    yield


@pytest.fixture(autouse=True, scope="session")
def _hang_ups_end_programs() -> Iterator[None]:
    """As on a terminal. Below nohup they are ignored, and every process that a test starts would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without settings file and `.env`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
