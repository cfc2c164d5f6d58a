"""Folders that rows begin with, made once for all of them: runs, candidates, pairs, a trained policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

from fixtures.handed_on_runs import write_run
from remedies.following import run

from finqa_testing.tiny_models import make_tiny_qwen3


def _evaluated(player: str, split: str) -> Callable[[Path], object]:
    return lambda folder: run(f"eval {player} --limit 2 --split {split} --sandboxes 1 --run-dir {folder}")


def _trained(folder: Path) -> None:
    make_tiny_qwen3(folder / "base")
    write_run(folder / "w", folder / "base")


def _candidates(folder: Path) -> None:
    run(f"sample random --limit 1 --num-candidates 1 --split dev --sandboxes 1 --run-dir {folder}")


BEGINNING = "--demonstration-questions 2 --sandboxes 1"


def _pipeline(folder: Path) -> None:
    """A pipeline after its first step, with paths as a user types them."""
    with chdir(folder.parent):
        run(f"pipeline --method grpo --output {folder.name} --until 00_data_validation {BEGINNING}")


MAKERS: dict[str, Callable[[Path], object]] = {
    "a": _evaluated("scripted", "dev"),
    "b": _evaluated("random", "dev"),
    "candidates": _candidates,
    "pairs": lambda folder: run(f"prefs {folder.parent / 'a'} {folder.parent / 'b'} --rule all --run-dir {folder}"),
    "trained": _trained,
    "pipeline": _pipeline,
    "training": lambda folder: run(
        "train --model embedded --iterations 1 --group-size 2 --target-groups-per-iter 1 --limit 1 --sandboxes 1 "
        f"--no-preflight --run-dir {folder}"
    ),
}
"""Makers by name: `a` of the expert and `b` of random calls on the same questions; `trained` has a model and a run."""

OF = {"pairs": ("a", "b")}
"""Folders that another one is made of."""


class SharedFolders:
    """Makes each folder when a row first asks for it.

    Attributes:
        root: Where they are; rows get copies.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def copy(self, name: str, target: Path) -> None:
        """Copy the folder of this name into a row's folder."""
        shutil.copytree(self.make(name), target)

    def make(self, name: str) -> Path:
        """Return the folder of this name."""
        made = self.root / name
        if not made.exists():
            for needed in OF.get(name, ()):
                self.make(needed)
            MAKERS[name](made)
        return made
