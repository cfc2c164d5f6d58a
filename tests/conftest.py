"""What every test may rely on: no settings, keys or caches of the person who runs them."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from fixtures import warm_commands, warm_servers
from hypothesis import settings

from finqa_cli.settings.schema import BARE_NAMES
from finqa_plugins.sandboxes.local import server_process

for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # else it asks the hub of a test for its list of agents, once a day
    "WANDB_MODE": "offline",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# Tests start hundreds of processes. Without compiled files each of them would compile the product again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SESSION = "finqa-test-session-"

PRIVATE = (
    *BARE_NAMES,
    "DAYTONA_API_KEY",
    "DAYTONA_API_URL",
    "DAYTONA_TARGET",
    "OPENAI_API_KEY",
    "CI",
    "NO_COLOR",
    "COLUMNS",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Turns the garbage collector off while modules are imported, and takes what they made out of its sight.

    Modules and collected tests are 1.6 million objects that live to the end. Looking at them again and again takes a
    third of the collection's time, and later a second whenever the product asks for a collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Takes what a file leaves for the next ones (imported modules, caches, models) out of the collector's sight, too.

    A collection that the product asks for looks at all objects that are left. Syntax trees of the architecture tests
    alone are 1.8 million, so each one would take a second.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go with the session: libraries leave some, and so do processes that a test kills.

    Workers have the folder of the process that starts them, which outlives them. Folders of failed tests are elsewhere.
    """
    if hasattr(config, "workerinput"):
        return
    usual = tempfile.gettempdir()
    for left in Path(usual).glob(f"{SESSION}*"):
        with contextlib.suppress(OSError):  # its session still runs
            os.close(_locked(left))
            shutil.rmtree(left, ignore_errors=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    folder = Path(tempfile.mkdtemp(prefix=SESSION))
    lock = _locked(folder)
    folder.chmod(0o755)  # sandboxes without isolation have a user of their own
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    os.environ["WANDB_CACHE_DIR"] = str(folder / "wandb")  # where wandb keeps logs of all runs
    config.add_cleanup(lambda: (shutil.rmtree(folder, ignore_errors=True), os.close(lock)))


def _locked(folder: Path) -> int:
    """A descriptor whose lock ends with this process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


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
    # a command that an earlier test ran in this process may have set a level, and ignores SIGUSR1 once its work is done
    structlog.reset_defaults()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield


@pytest.fixture(autouse=True, scope="session")
def _warm_servers() -> Iterator[None]:
    """Environment servers that commands start in this process are forked, see `fixtures.warm_servers`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_spawn", warm_servers.spawn)
        yield


@pytest.fixture(scope="module")
def _cold_servers() -> Iterator[None]:
    """For files whose tests find servers by their environment: servers are started as the product starts them."""
    with warm_servers.cold_servers():
        yield


@pytest.fixture(scope="session")
def command_server() -> Iterator[warm_commands.ForkServer]:
    """The process that commands are forked from; it runs once there is a first one."""
    server = warm_commands.ForkServer(os.environ)
    yield server
    server.close()


@pytest.fixture(scope="module")
def _warm_commands(command_server: warm_commands.ForkServer, request: pytest.FixtureRequest) -> Iterator[None]:
    """For files whose commands may be forked instead of started, see `fixtures.warm_commands`.

    Modules that only their commands import are in the file's `PRELOADED`.
    """
    with warm_commands.warm_commands(command_server, *getattr(request.module, "PRELOADED", ())):
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
