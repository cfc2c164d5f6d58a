"""However a run ends, no sandbox and no process of it is left: real `finqa` processes, real signals, both providers.

The default suite does each accident once with each provider; `pytest -m slow` does each 20 times, at moments that a
seed draws, sandboxes being started and ended included.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fixtures.daytona_images import ready_image
from fixtures.left_processes import processes_of
from fixtures.warm_commands import DAYTONA

from finqa_plugins.sandboxes.local.local_ledger import Ledger
from finqa_testing import Delay, Latency, LoopbackConfig, LoopbackProcess

pytest.importorskip("openenv", reason="needs finqa[openenv]")
pytest.importorskip("daytona", reason="needs finqa[daytona]")

pytestmark = [pytest.mark.usefixtures("_warm_commands"), pytest.mark.thorough]

PRELOADED = (DAYTONA,)
PROVIDERS = ("local", "daytona")
SANDBOXES = 6
HANG_S = 90.0

PLUGIN = '''
import asyncio

from pydantic import BaseModel

from finqa_cli.errors import FinqaError
from finqa_cli.extend import Component, hookimpl
from finqa_plugins.engines.scripted.scripted_engine import ScriptedEngine


class Config(BaseModel):
    pause_s: float = 0.0
    fails_at: int = 0


class Slow(ScriptedEngine):
    """The scripted expert, thinking for a while before each call, or with a bug in one of them."""

    def __init__(self, config, context):
        super().__init__(None, context)
        self.config, self.calls = config, 0

    async def respond(self, request):
        self.calls += 1
        if self.calls == self.config.fails_at:
            raise FinqaError("the engine is broken for good")
        await asyncio.sleep(self.config.pause_s)
        return await super().respond(request)


@hookimpl
def register_components():
    where = "slow_engine:"
    return [Component(kind="engine", name="slow", target=where + "Slow", config=where + "Config", modelless=True)]
'''


@dataclass(frozen=True)
class Accident:
    """What happens to a run: signals, seconds apart, after its sandboxes are up; and how its process may end."""

    name: str
    statuses: tuple[int, ...]
    signals: tuple[signal.Signals, ...] = ()
    apart_s: float = 0.3
    options: Mapping[str, float] = field(default_factory=lambda: {"pause_s": 0.1})

    def __str__(self) -> str:
        return self.name


FOREVER = {"pause_s": 600.0}
ACCIDENTS = [
    Accident("ctrl-c", (130,), (signal.SIGINT,)),
    Accident("ctrl-c twice", (130, -signal.SIGINT), (signal.SIGINT, signal.SIGINT), options=FOREVER),
    # the second may come when Python itself is ending: -2
    Accident("ctrl-c while sandboxes are being ended", (130, -2), (signal.SIGINT, signal.SIGINT), apart_s=0.8),
    Accident("sigterm", (143,), (signal.SIGTERM,)),
    Accident("hang-up", (129,), (signal.SIGHUP,)),
    Accident("kill -9", (-9,), (signal.SIGKILL,), options=FOREVER),
    Accident("engine that breaks for good", (1,), options={"pause_s": 0.1, "fails_at": 20}),
]


@pytest.fixture(autouse=True, scope="module")
def _ctrl_c_ends_programs() -> Iterator[None]:
    """Programs that a shell has put into the background ignore SIGINT, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


SLOW_ONLY = {
    ("hang-up", "daytona"),
    ("engine that breaks for good", "daytona"),
    ("ctrl-c twice", "daytona"),
    ("ctrl-c while sandboxes are being ended", "local"),
    ("ctrl-c twice", "local"),
    ("ctrl-c", "daytona"),
    ("sigterm", "local"),
}
"""What says nothing new with the other provider."""


@dataclass(frozen=True)
class Place:
    """Where sandboxes are: how `finqa` is started for it, and what is really there."""

    sandbox: str
    variables: Mapping[str, str]
    folder: Path
    sandboxes: Callable[[], int]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`finqa` in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "finqa_cli", *arguments, "--sandbox", self.sandbox],
            env={**os.environ, **self.variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> str:
        """What a `finqa` that succeeds says on stdout."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
        return output


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "slow_engine.py").write_text(PLUGIN)
    metadata = folder / "slow_engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[finqa]\nslow_engine = slow_engine\n")
    return folder


@pytest.fixture(scope="module")
def loopback(home: Path) -> Iterator[LoopbackProcess]:
    config = LoopbackConfig(
        images=ready_image(home / "home"),
        latency=Latency(create=Delay(median_s=0.1, sigma=0.5), delete=Delay(median_s=0.4, sigma=0.5)),
        create_limit=0,
    )
    with LoopbackProcess(config) as process:
        yield process


@pytest.fixture
def place(request: pytest.FixtureRequest, home: Path) -> Place:
    variables = {"FINQA_HOME": str(home / "home"), "OMP_NUM_THREADS": "1", "CI": "1"}
    paths = [str(home), os.environ.get("PYTHONPATH", "")]
    if request.param == "local":
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return Place("local", variables, home, lambda: local_sandboxes(home / "home"))
    loopback: LoopbackProcess = request.getfixturevalue("loopback")
    paths.insert(1, loopback.environment.get("PYTHONPATH", ""))
    variables |= {**loopback.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return Place("daytona", variables, home, lambda: loopback.control.stats()["sandboxes"])


def local_sandboxes(home: Path) -> int:
    return sum(len(entry.sandboxes) for entry in Ledger(home / "local").entries())


def wait_for(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < HANG_S, "it did not happen"
        time.sleep(0.02)


def suffer(place: Place, accident: Accident, run: Path, wait_s: float | None = None) -> str:
    """Lets an accident happen to a run, `wait_s` after its start or once its sandboxes are up; returns its stderr."""
    options = [f"--set=engine.options.{name}={value}" for name, value in accident.options.items()]
    pool = [f"--sandboxes={SANDBOXES}", "--max-concurrent-create=3"]
    process = place.start("eval", "slow", "--attempts=100", f"--run-dir={run}", *pool, *options)
    try:
        if wait_s is not None:
            time.sleep(wait_s)
        elif accident.signals:
            wait_for(lambda: place.sandboxes() >= SANDBOXES or process.poll() is not None)
        for number in accident.signals:
            process.send_signal(number)
            time.sleep(accident.apart_s)
        _, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    if wait_s is None:
        assert process.returncode in accident.statuses, errors
        assert "Traceback" not in errors
    wait_for(lambda: not processes_of(process.pid, place.folder / "home"))
    return errors


def clean_up(place: Place) -> None:
    """What a user does after kill -9: the next start says how, and that is done."""
    left = place.sandboxes()
    _, said = place.start("play", "--engine=scripted").communicate(timeout=HANG_S)
    command = re.search(rf"{left} sandbox\S* of .* left: finqa (.*)\n", said)
    assert command, said
    assert place.call(*command[1].split()).startswith(f"Ended {left} daytona sandbox")


def nothing_is_left(place: Place) -> bool:
    return place.sandboxes() == 0 and not list((place.folder / "home" / "daytona").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("accident", "place"),
    [
        pytest.param(accident, sandbox, marks=[pytest.mark.slow] if (accident.name, sandbox) in SLOW_ONLY else [])
        for accident in ACCIDENTS
        for sandbox in PROVIDERS
    ],
    ids=str,
    indirect=["place"],
)
def test_nothing_is_left_after(accident: Accident, place: Place, tmp_path: Path) -> None:
    errors = suffer(place, accident, tmp_path / "run")
    if accident.signals == (signal.SIGINT,):
        assert "SIGINT: running episodes may finish in 30 s; press again to end them now." in errors
    if signal.SIGKILL in accident.signals and place.sandbox == "daytona":
        assert place.sandboxes() == SANDBOXES
        clean_up(place)
    assert nothing_is_left(place)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", PROVIDERS, indirect=True)
@pytest.mark.parametrize("accident", ACCIDENTS, ids=str)
def test_nothing_is_left_after_twenty_times(accident: Accident, place: Place, tmp_path: Path) -> None:
    moments = random.Random(f"{accident}:{place.sandbox}")
    for number in range(20):
        suffer(place, accident, tmp_path / f"run{number}", wait_s=moments.uniform(0.1, 3.0))
        if signal.SIGKILL in accident.signals and place.sandbox == "daytona":
            time.sleep(1.0)  # a create that was under way has its sandbox now
            if place.sandboxes():
                clean_up(place)
        assert nothing_is_left(place), number
