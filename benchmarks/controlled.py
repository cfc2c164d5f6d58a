"""Trainings beside their controls: a command in its own process, and what counts as learned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

NAMES = {False: "grpo", True: "control, rewards shuffled"}
"""Of the two runs, by whether rewards were shuffled."""


def finqa(*arguments: str) -> dict[str, Any]:
    """The document that the command prints with `--json`. It has one core."""
    command = [sys.executable, "-m", "finqa_cli", *arguments, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def verdict(results: Mapping[bool, Mapping[str, Any]], wanted_gain: float) -> list[str]:
    """What was missed; `results` by whether rewards were shuffled.

    The control may lose, for its updates are noise; it gains nothing while the 95 % intervals before and after overlap.
    """
    missed = []
    gain = results[False]["after"]["accuracy"] - results[False]["before"]["accuracy"]
    if gain < wanted_gain:
        missed.append(f"GRPO gained {100 * gain:.0f} points, at least {100 * wanted_gain:.0f} are wanted")
    before, after = results[True]["before"], results[True]["after"]
    if after["accuracy_interval"][0] > before["accuracy_interval"][1]:
        missed.append(f"the control rose from {before['accuracy']:.2f} to {after['accuracy']:.2f}")
    return missed
