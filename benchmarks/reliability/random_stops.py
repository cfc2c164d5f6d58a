"""SIGTERM at random moments of every kind of command: how soon each ends, and what it leaves behind.

    python -m benchmarks.reliability.random_stops [--stops N] [--seed N] [--model MODEL] [--only NAME]

Each command is timed once. Then a seed draws commands and moments of them, uniform over that time. A process of a
command is known by a variable of its environment, so that one that was handed to init is found too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, at_most, exactly, machine, note, report
from benchmarks.reliability.scale import Scale, full

SOON_S = 5.0
PATIENCE_S = 1.0
LONGEST_S = 300.0
MARK = "FINQA_BENCHMARK_MARK"
TORCH_CACHE = "torchinductor_"
"""Start of the name of the folder of caches that PyTorch makes for all processes of a user."""
DONE = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit status: it was done already, it stopped, or Python had not begun to run it."""

_TEXT = ("--environment=finqa-text", "--quiet")
_SMALL = ("--sandboxes=4", "--limit=4", "--quiet")
_LEARN = ("--group-size=4", "--set=train.target_groups_per_iter=2", "--iterations=2", "--no-preflight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line. `{case}` is a new folder, `{ready}` the folder with what `PREPARED` made.

    Attributes:
        weight: How often it is drawn, relative to others.
        lasts_s: It does not end by itself, and is stopped in so many seconds; 0: it ends.
        model: It runs a model with PyTorch.
    """

    name: str
    words: tuple[str, ...]
    weight: int = 1
    lasts_s: float = 0.0
    model: bool = False


PREPARED = (
    ("eval", "scripted", "--split=train", "--limit=8", "--run-dir={ready}/demos", "--quiet"),
    ("eval", "scripted", "--split=train", "--limit=8", "--seed=1", "--run-dir={ready}/others", "--quiet"),
    ("sample", "embedded", "--run-dir={ready}/candidates", *_SMALL),
    ("prefs", "{ready}/candidates", "--run-dir={ready}/pairs", "--quiet"),
    ("train", "--run-dir={ready}/trained", *_SMALL, *_LEARN),
)
COMMANDS = (
    Command(name="train", words=("train", "--run-dir={case}/run", *_SMALL, *_LEARN), weight=8, model=True),
    Command(
        name="train of texts",
        words=("train", "--run-dir={case}/run", "--limit=4", *_TEXT, *_LEARN),
        weight=3,
        model=True,
    ),
    Command(name="eval", words=("eval", "embedded", "--run-dir={case}/run", *_SMALL), weight=4, model=True),
    Command(name="eval scripted", words=("eval", "scripted", "--run-dir={case}/run", "--quiet"), weight=3),
    Command(name="sample", words=("sample", "embedded", "--run-dir={case}/run", *_SMALL), weight=3, model=True),
    Command(name="sft", words=("sft", "{ready}/demos", "--run-dir={case}/run", "--quiet"), weight=4, model=True),
    Command(name="dpo", words=("dpo", "{ready}/pairs/pairs.jsonl", "--run-dir={case}/run", "--quiet"), model=True),
    Command(name="play", words=("play", "--engine=transformers", "--model=embedded"), weight=4, model=True),
    Command(name="play scripted", words=("play", "--engine=scripted"), weight=2),
    Command(
        name="pipeline",
        words=("pipeline", "--method=grpo", "--output={case}/pipe", "--quick-test", "--limit=4", "--past-gates"),
        weight=3,
        lasts_s=30,
        model=True,
    ),
    Command(name="policy make", words=("policy", "make", "--out={case}/policy"), lasts_s=20, weight=2, model=True),
    Command(name="export", words=("export", "{ready}/trained", "--to=merged", "--out={case}/merged"), model=True),
    Command(name="report", words=("report", "{ready}/trained", "--out={case}/report.html")),
    Command(name="compare", words=("compare", "a={ready}/demos", "b={ready}/others", "--out={case}/compared")),
    Command(name="view", words=("view", "{ready}", "--no-browser"), lasts_s=3),
    Command(name="snapshot serve", words=("snapshot", "serve"), lasts_s=4),
    Command(name="ls", words=("ls", "{ready}")),
    Command(name="show", words=("show", "{ready}/demos")),
    Command(name="top", words=("top", "{ready}/demos", "--once")),
    Command(name="doctor", words=("doctor",), weight=2),
    Command(name="data generate", words=("data", "generate", "--out={case}/data"), weight=2),
    Command(
        name="snapshot build",
        words=("snapshot", "build", "--snapshot-name=stopped{number}", "--data=embedded"),
        weight=2,
    ),
    Command(name="plan", words=("plan", "--sandboxes=100", "--hours=1")),
    Command(name="rewards test", words=("rewards", "test", "ternary")),
    Command(name="model inspect", words=("model", "inspect", "embedded")),
    Command(name="plugins", words=("plugins",)),
    Command(name="gc", words=("gc", "{ready}")),
    Command(name="config show", words=("config", "show")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What one signal did.

    Attributes:
        seconds: From the signal to the end of the command.
        computed: CPU seconds of it, which do not depend on what else the machine does.
        landed: The command still ran when the signal came.
        left: Processes and files that it left behind, in words.
        complaint: Why this is no proper end; empty if it is one.
    """

    command: str
    moment: float
    seconds: float
    computed: float
    landed: bool
    left: tuple[str, ...]
    complaint: str


class Stops:
    """Starts commands, signals them, and looks at what is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = folder / "ready"
        self._home = folder / "home"
        self._ready.mkdir()
        self._numbers = itertools.count()
        own = {"FINQA_HOME": str(self._home), "OMP_NUM_THREADS": "1"}
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("FINQA_", "DAYTONA_"))}
        self._environment = {**outer, **own}

    def prepare(self) -> None:
        """Make the runs that commands read.

        Raises:
            RuntimeError: A command fails.
        """
        for words in PREPARED:
            self.time(Command(name=words[0], words=words))

    def time(self, command: Command) -> float:
        """Run a command undisturbed, and return its seconds.

        Raises:
            RuntimeError: It fails.
        """
        if command.lasts_s:
            return command.lasts_s
        began = time.monotonic()
        with self._started(command) as (process, case):
            status = process.wait(LONGEST_S)
            if status:
                raise RuntimeError(f"{' '.join(command.words)}: {status}: {(case / 'output').read_text()[-600:]}")
        return time.monotonic() - began

    def stop(self, command: Command, moment: float) -> Stop:
        """Send SIGTERM `moment` seconds after the start."""
        before, waited = self._scraps(), _computed_by_children()
        with self._started(command) as (process, case):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            landed, sent = process.poll() is None, time.monotonic()
            used = _computed(process.pid) if landed else 0.0
            family = set(_marked(case)) if landed else set()
            process.terminate()
            complaint = ""
            try:
                status = process.wait(LONGEST_S / 5)
            except subprocess.TimeoutExpired:
                status, complaint = -signal.SIGKILL, "it does not end"
            seconds = time.monotonic() - sent
            computed = max(0.0, _computed_by_children() - waited - used) if landed else 0.0
            end = time.monotonic() + PATIENCE_S
            while (processes := _marked(case)) and time.monotonic() < end:
                time.sleep(0.02)
            output = (case / "output").read_text(encoding="utf-8", errors="replace")
            if not complaint and status not in DONE:
                complaint = f"exit status {status}"
            if "Traceback" in output and not complaint:
                complaint = "a traceback"
            left = [f"process {_name(pid)} of {len(family)}" for pid in processes]
            left += [str(path) for path in (case / "tmp").iterdir() if not path.name.startswith(TORCH_CACHE)]
            left += sorted(self._scraps() - before)
        said = f"{complaint}: {output[-300:]}" if complaint else ""
        return Stop(
            command=command.name,
            moment=moment,
            seconds=seconds,
            computed=computed,
            landed=landed,
            left=tuple(left),
            complaint=said,
        )

    @contextlib.contextmanager
    def _started(self, command: Command) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        number = next(self._numbers)
        case = self._folder / f"case{number}"
        (case / "tmp").mkdir(parents=True)
        values = {"case": str(case), "ready": str(self._ready), "number": str(number)}
        words = [re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], word) for word in command.words]
        with (case / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "finqa_cli", *words],
                env={**self._environment, MARK: str(case), "TMPDIR": str(case / "tmp")},
                cwd=case,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process, case
        finally:
            for pid in _marked(case):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            subprocess.run(["rm", "-rf", str(case)], check=True)

    def _scraps(self) -> set[str]:
        """Temporary files of the home and of the prepared runs."""
        return {
            str(path)
            for root in (self._home, self._ready)
            for path in root.rglob(".*")
            if path.name != ".lock" and not path.name.endswith(".lock")
        }


def _marked(case: Path) -> list[int]:
    """Processes of a case that run, wherever they hang in the tree of processes."""
    wanted, found = f"{MARK}={case}\0".encode(), []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes() + b"\0":
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state not in "ZX" else []
    return found


def _computed(pid: int) -> float:
    """CPU seconds of a process and of its children that ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _computed_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return str(pid)


def draw_stops(folder: Path, *, seed: int, count: int, commands: Sequence[Command], model: str = "") -> Iterator[Stop]:
    """Yield the stops of `count` signals that found their command running.

    Args:
        folder: Folder for everything that is written.
        seed: Seed of commands and moments.
        count: Number of signals.
        commands: The commands to draw from.
        model: Model of the commands with a model, instead of the embedded one.
    """
    stops, rng, lasts = Stops(folder), random.Random(seed), dict[str, float]()
    stops.prepare()
    landed = 0
    while landed < count:
        (drawn,) = rng.choices(commands, [command.weight for command in commands])
        command = _with_model(drawn, model) if model else drawn
        if command.name not in lasts:
            lasts[command.name] = stops.time(command)
        stop = stops.stop(command, rng.uniform(0, lasts[command.name]))
        landed += stop.landed
        if stop.landed:
            print(
                f"{landed:4d} {stop.command} at {stop.moment:.2f} of {lasts[command.name]:.1f} s: "
                f"{stop.seconds:.2f} s, computed {stop.computed:.2f} s {stop.complaint} {' '.join(stop.left)}",
                file=sys.stderr,
                flush=True,
            )
            yield stop


def _with_model(command: Command, model: str) -> Command:
    words = [model if word == "embedded" else word for word in command.words if word != "--model=embedded"]
    if command.name not in ("eval", "sample"):
        words.append(f"--model={model}")
    return Command(name=command.name, words=tuple(words), lasts_s=20, weight=command.weight, model=True)


def figures(stops: Collection[Stop]) -> list[Figure]:
    """Judge the stops."""
    slowest = max(stops, key=lambda stop: stop.seconds)
    left = [f"{stop.command} at {stop.moment:.2f} s: {what}" for stop in stops for what in stop.left]
    complaints = [f"{stop.command} at {stop.moment:.2f} s: {stop.complaint}" for stop in stops if stop.complaint]
    of_models = [stop.seconds for stop in stops if any(stop.command == c.name and c.model for c in COMMANDS)]
    return [
        note("signals", len(stops), f"to {len({stop.command for stop in stops})} commands"),
        at_most("slowest end, s", slowest.seconds, SOON_S, f"{slowest.command} at {slowest.moment:.2f} s", timed=True),
        note("most CPU time of an end, s", max(stop.computed for stop in stops)),
        note("of them with PyTorch", len(of_models), f"slowest {max(of_models, default=0):.2f} s"),
        exactly("processes and temporary files left", len(left), 0, "; ".join(left[:3])),
        exactly("tracebacks and undocumented exit statuses", len(complaints), 0, "; ".join(complaints[:2])),
    ]


def measure(scale: Scale, folder: Path) -> list[Figure]:
    """Judge `scale.stops` signals to the commands."""
    return figures(list(draw_stops(folder, seed=scale.seed, count=scale.stops, commands=COMMANDS)))


def main() -> int:
    """Read the flags and run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=full(0, 1, 1).stops, help="signals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="", help="a model instead of the embedded one; then only commands with one")
    parser.add_argument("--only", choices=[c.name for c in COMMANDS], action="append", help="just this command")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = arguments.only or [c.name for c in COMMANDS if not arguments.model or c.model]
    chosen = [command for command in COMMANDS if command.name in names]
    began = machine()
    with tempfile.TemporaryDirectory(prefix="finqa-stops-") as folder:
        stops = list(
            draw_stops(Path(folder), seed=arguments.seed, count=arguments.stops, commands=chosen, model=arguments.model)
        )
    return report({"stops": figures(stops)}, {**began, "seed": arguments.seed, "model": arguments.model or "embedded"})


if __name__ == "__main__":
    sys.exit(main())
