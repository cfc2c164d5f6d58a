"""Training while rollouts continue, against one after the other: every figure with its limit, pass or fail.

    python -m benchmarks.async_training [--only speed|accuracy] [--quick] [--seeds 3] [--out FOLDER]

`speed` runs the product's trainer between a simulated engine and a simulated learner that only take time, rollouts and
updates about equal. `accuracy` trains the embedded policy for real, with overlap and without, from three seeds (half an
hour on two cores). Prints a markdown table and, as the last line, the same as JSON; the exit status is 1 when a figure
fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.async_training.accuracy import accuracy
from benchmarks.async_training.speed import speed
from benchmarks.figures import Figure, machine, report

PARTS = ("speed", "accuracy")


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="few iterations, one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the runs; a temporary one by default")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    figures: dict[str, list[Figure]] = {}
    if "speed" in parts:
        figures["speed"] = speed(iterations=6 if arguments.quick else 30)
    if "accuracy" in parts:
        seeds, iterations = (1, 3) if arguments.quick else (arguments.seeds, 24)
        with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
            figures["accuracy"] = accuracy(seeds, iterations, arguments.out or Path(folder))
    return report(figures, machine())


if __name__ == "__main__":
    sys.exit(main())
