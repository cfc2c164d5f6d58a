"""Runs of the real command that end badly, on local sandboxes and on the loopback Daytona: what is left?"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, exactly
from benchmarks.sandboxes.plugin import NAME, install
from benchmarks.sandboxes.processes import Identity, family, survivors
from benchmarks.sandboxes.world import SNAPSHOT, World
from finqa_cli.rollout.seeds import derive

PROVIDERS = ("daytona", "local")
AT_ONCE = 2
PATIENCE_S = 2.0
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How runs are ended: signals a while after each other, or a bug; and the exit status that a shell sees then."""

    name: str
    signals: tuple[signal.Signals, ...]
    status: int


ENDINGS = (
    Ending(name="one Ctrl-C", signals=(signal.SIGINT,), status=130),
    Ending(name="two Ctrl-C", signals=(signal.SIGINT, signal.SIGINT), status=130),
    Ending(name="SIGTERM", signals=(signal.SIGTERM,), status=143),
    Ending(name="kill -9", signals=(signal.SIGKILL,), status=128 + signal.SIGKILL),
    Ending(name="exception in a plugin", signals=(), status=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What a run left behind.

    Attributes:
        sandboxes: After its exit; after `finqa sandbox reap` when it was killed.
        processes: Two seconds after its exit.
        watched: Processes that it had, itself included.
        complaint: Why this is not a proper ending; empty when it is one.
    """

    sandboxes: int
    processes: int
    watched: int
    complaint: str


class Runs:
    """Starts runs in processes of their own, ends them and looks at what is left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs = world.home / "runs"
        self._runs.mkdir(exist_ok=True)
        variables = world.loopback.environment
        folders = [*install(world.home / "site"), *filter(None, [variables.get("PYTHONPATH")])]
        own = {"FINQA_HOME": str(world.home), "PYTHONPATH": os.pathsep.join(folders)}
        self._environment = {**os.environ, **variables, **own}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def aftermath(self, ending: Ending, provider: str, number: int) -> Aftermath:
        """One run. Odd ones are ended while they play, even ones possibly while their sandboxes start."""
        async with self._places:
            run = self._runs / f"{ending.name.replace(' ', '-')}-{provider}-{number}"
            rng = random.Random(derive(self._world.seed, ending.name, provider, number))
            with run.with_suffix(".log").open("wb") as log:
                process = await self._start(run, provider, fails=not ending.signals, log=log.fileno())
                relatives: set[Identity] = set()
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        await self._end(process, run, ending, rng, relatives, playing=bool(number % 2))
                except TimeoutError:
                    pass  # the exit status tells
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
            left = await survivors(relatives, PATIENCE_S)
            if ending.signals == (signal.SIGKILL,):
                await self._finqa("sandbox", "reap", "--run", run.name, "--yes", "--sandbox", provider)
            sandboxes = await self._sandboxes(run.name, provider)
            assert process.returncode is not None, "it was waited for"
            status = _as_a_shell(process.returncode)
            complaint = "" if status == ending.status else f"exit status {status}"
            return Aftermath(
                sandboxes=sandboxes,
                processes=len(left),
                watched=len(relatives),
                complaint=complaint and f"{complaint}: {run}.log",
            )

    async def _start(self, run: Path, provider: str, *, fails: bool, log: int) -> asyncio.subprocess.Process:
        sandboxes = (
            "--sandboxes",
            str(self._world.scale.signal_sandboxes),
            "--sandbox",
            provider,
            "--snapshot",
            SNAPSHOT,
        )
        options = ("--set", "engine.options.fails_after=20") if fails else ()
        command = ("eval", NAME, "--split", "train", *sandboxes, "--run-dir", str(run), "--quiet", *options)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "finqa_cli", *command, env=self._environment, stdout=log, stderr=log
        )

    async def _end(
        self,
        process: asyncio.subprocess.Process,
        run: Path,
        ending: Ending,
        rng: random.Random,
        relatives: set[Identity],
        *,
        playing: bool,
    ) -> None:
        """Ends the run at some moment and waits for it; `relatives` learns which processes it had."""
        exit_ = asyncio.create_task(process.wait())
        wanted = run / ("trajectories.jsonl" if playing else "run.json")
        while not (exit_.done() or (wanted.is_file() and wanted.stat().st_size)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for number in ending.signals:
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            relatives |= family(process.pid)
            if not exit_.done():
                process.send_signal(number)
        while not exit_.done():
            relatives |= family(process.pid)
            await asyncio.wait({exit_}, timeout=0.5)

    async def _sandboxes(self, run: str, provider: str) -> int:
        if provider == "daytona":
            sandboxes = await self._world.loopback.async_control.sandboxes()
            return sum(sandbox["labels"].get("finqa.run") == run for sandbox in sandboxes)
        listed = await self._finqa("sandbox", "ls", "--run", run, "--sandbox", provider, "--json")
        return len(json.loads(listed)["sandboxes"])

    async def _finqa(self, *arguments: str) -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "finqa_cli", *arguments, env=self._environment, stdout=pipe, stderr=pipe
        )
        output, errors = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"finqa {' '.join(arguments)} failed: {errors.decode()[-1000:]}")
        return output


async def signals(world: World) -> list[Figure]:
    """Every ending on every provider, `scale.repeats` times."""
    scale = world.scale
    cases = [(ending, provider, n) for ending in ENDINGS for provider in PROVIDERS for n in range(scale.repeats)]
    if scale.signal_runs is not None:
        cases = random.Random(derive(world.seed, "signals")).sample(cases, scale.signal_runs)
    runs = Runs(world)
    found = await asyncio.gather(*(runs.aftermath(*case) for case in cases))
    return [figure for ending in ENDINGS for figure in _figures(ending, cases, found)]


def _figures(ending: Ending, cases: Sequence[tuple[Ending, str, int]], found: Sequence[Aftermath]) -> Sequence[Figure]:
    own = [aftermath for case, aftermath in zip(cases, found, strict=True) if case[0] is ending]
    if not own:
        return ()
    complaints = [aftermath.complaint for aftermath in own if aftermath.complaint]
    watched = f"of {sum(aftermath.watched for aftermath in own)}"
    reaped = ", after `finqa sandbox reap`" if ending.signals == (signal.SIGKILL,) else ""
    return [
        exactly(f"{ending.name}: sandboxes left", sum(a.sandboxes for a in own), 0, f"of {len(own)} runs{reaped}"),
        exactly(
            f"{ending.name}: processes left", sum(a.processes for a in own), 0, f"{watched} after {PATIENCE_S:g} s"
        ),
        exactly(
            f"{ending.name}: other exit status than {ending.status}", len(complaints), 0, "; ".join(complaints[:1])
        ),
    ]


def _as_a_shell(status: int) -> int:
    """The second Ctrl-C may come when all is ended and the interpreter leaves: to a shell that is 130 as well."""
    return 128 - status if status < 0 else status
