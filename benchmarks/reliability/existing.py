"""Tests and other benchmarks of this repository, run in processes of their own, as figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.figures import Figure, exactly, without_times
from benchmarks.reliability.scale import Scale

ROOT = Path(__file__).parents[2]
SHOWN = 3

Measure = Callable[[Scale, Path], list[Figure]]


def tests(*names: str, only: str = "", slow: bool = False) -> Measure:
    """Returns a measure that runs tests.

    Args:
        names: Files below `tests`, or single tests in them (`FILE::TEST`).
        only: Expression of `pytest -k`.
        slow: Whether tests marked `slow` run too, unless the scale is quick.
    """

    def measure(scale: Scale, folder: Path) -> list[Figure]:
        marked = "not gpu and not cloud" + ("" if slow and not scale.quick else " and not slow")
        report = folder / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            marked,
            f"--junit-xml={report}",
            "-p",
            "no:cacheprovider",
        ]
        command += ["-k", only] if only else []
        done = subprocess.run(
            [*command, *(f"tests/{name}" for name in names)],
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            return [exactly("tests that could be run", 0, 1, (done.stdout + done.stderr)[-300:].replace("\n", " "))]
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
        failed = [
            case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
        ]
        skipped = sum(case.find("skipped") is not None for case in cases)
        ran = len(cases) - skipped
        detail = f"of {ran} tests" + (f", {skipped} skipped" if skipped else "")
        detail += f": {', '.join(failed[:SHOWN])}" if failed else ""
        return [exactly("tests that fail", len(failed) if ran else 1, 0, detail)]

    return measure


def benchmark(module: str, *arguments: str, quick: Sequence[str] = ("--quick",)) -> Measure:
    """Returns a measure that runs a benchmark whose last line of output is the JSON of `benchmarks.figures`."""

    def measure(scale: Scale, folder: Path) -> list[Figure]:
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, *(quick if scale.quick else ())]
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
        try:
            document = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return [exactly("exit status", done.returncode or 1, 0, done.stderr[-300:].replace("\n", " "))]
        names = ("name", "value", "limit", "passed", "detail", "timed")
        figures = [Figure(**{name: figure[name] for name in names}) for figure in document["figures"]]
        return without_times(figures) if scale.quick else figures

    return measure


def program(module: str, *arguments: str, quick: Sequence[str] = ()) -> Measure:
    """Returns a measure that runs a benchmark which says by its exit status whether it met its own targets."""

    def measure(scale: Scale, folder: Path) -> list[Figure]:
        command = [sys.executable, "-m", f"benchmarks.{module}", *(quick if scale.quick else arguments)]
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
        ended = done.stdout.strip().splitlines()[-1:] if not done.returncode else [(done.stdout + done.stderr)[-600:]]
        detail = " ".join(ended)
        return [exactly("exit status", done.returncode, 0, detail)]

    return measure


def together(*measures: Measure) -> Measure:
    """Returns a measure that takes several."""

    def measure(scale: Scale, folder: Path) -> list[Figure]:
        found: list[Figure] = []
        for each in measures:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                found += each(scale, Path(own))
        return found

    return measure


def _environment() -> dict[str, str]:
    """This process's own, without settings and keys of the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FINQA_", "DAYTONA_"))}
    return {**kept, "OMP_NUM_THREADS": "1"}
