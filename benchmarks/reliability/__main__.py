"""Every promise about faults, with its injection, figure and bar; and chaos beside a real training.

    python -m benchmarks.reliability [--only NAME] [--seeds N] [--seed N] [--at-once N] [--quick] [--out FILE.json]

`chaos` trains the embedded policy while faults that a seed draws happen to it, resumes it as often as it ends, and
compares it with an undisturbed run. R1 to R30 are promises with a test or benchmark each, most of which are run in
processes of their own. Prints a Markdown table, one row a promise; the exit status is 1 when a figure misses its bar.
`--only chaos --seed 17 --seeds 1` repeats the faults of one seed. `--quick` is for tests: few seeds and small numbers,
times are not judged.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, as_json, exactly, machine
from benchmarks.reliability.requirements import REQUIREMENTS, Requirement
from benchmarks.reliability.scale import Scale, full, quick
from finqa_cli import logs

SEEDS = 50


def measure(requirement: Requirement, scale: Scale) -> list[Figure]:
    """Measures one promise in its own folder. What fails otherwise is a figure that fails."""
    if requirement.measure is None:
        return []
    with tempfile.TemporaryDirectory(prefix="finqa-reliability-") as folder:
        try:
            return requirement.measure(scale, Path(folder))
        except Exception as error:
            return [exactly("measurements that failed", 1, 0, f"{type(error).__name__}: {error}"[:500])]


def as_rows(figures: dict[str, list[Figure]]) -> str:
    """Returns Markdown, one row a promise."""
    rows = ["| | what is done | bar | figures | |", "| --- | --- | --- | --- | --- |"]
    for requirement in REQUIREMENTS:
        if requirement.name in figures:
            members = figures[requirement.name]
            told = "; ".join(filter(None, (*map(_told, members), requirement.reason)))
            cells = (requirement.name, requirement.injection, requirement.bar, told, verdict(requirement, members))
            rows.append(f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |")
    return "\n".join(rows)


def verdict(requirement: Requirement, figures: Sequence[Figure]) -> str:
    """Returns pass, FAIL, or that it does not apply here."""
    if requirement.measure is None:
        return "does not apply"
    return "pass" if all(figure.passed for figure in figures) else "FAIL"


def _told(figure: Figure) -> str:
    value = f"{figure.value:.4g}" if figure.value != int(figure.value) else f"{figure.value:.0f}"
    told = f"{figure.name} {value}"
    if figure.limit and not figure.passed:
        told += f" (bar {figure.limit})"
    return f"{told} ({figure.detail})" if figure.detail else told


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [requirement.name for requirement in REQUIREMENTS]
    parser.add_argument("--only", choices=names, action="append", help="just this one; may be given several times")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of chaos ({SEEDS})")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--at-once", type=int, default=1, help="trainings beside each other (1)")
    parser.add_argument("--quick", action="store_true", help="small numbers, for tests")
    parser.add_argument("--out", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what is mounted and started is ended
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has programs in the background ignore it,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup does with this one; trainers would inherit that
    logs.configure({"FINQA_LOG_LEVEL": "error"})  # checkpoints are damaged on purpose, and each would be a line
    scale = (quick if arguments.quick else full)(arguments.seed, arguments.seeds, arguments.at_once)
    began = machine()
    figures: dict[str, list[Figure]] = {}
    for requirement in REQUIREMENTS:
        if requirement.name in (arguments.only or names):
            print(f"{time.strftime('%H:%M:%S')} {requirement.name}", file=sys.stderr, flush=True)
            figures[requirement.name] = measure(requirement, scale)
    print(as_rows(figures))
    facts = {**began, "seed": arguments.seed, "seeds": scale.seeds, "quick": scale.quick}
    about = {r.name: {"injection": r.injection, "bar": r.bar, "reason": r.reason} for r in REQUIREMENTS}
    verdicts = {r.name: verdict(r, figures[r.name]) for r in REQUIREMENTS if r.name in figures}
    document = {**json.loads(as_json(figures, facts)), "requirements": about, "verdicts": verdicts}
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
