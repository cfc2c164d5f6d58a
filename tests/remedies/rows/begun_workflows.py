"""Pipelines and experiments that have begun, in folders that were damaged, moved or changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixtures.data_files import write_folder
from remedies.faults import Fault, own, text
from remedies.shared_folders import BEGINNING

P, DONE, NEXT = "pipeline", "--until 00_data_validation", "--until 01_dataset"
RESUME = f"pipeline --resume {P}"
SAME = f"pipeline --method grpo --data own --output own-pipeline {BEGINNING} {NEXT}"


def grown(name: str) -> Callable[[], object]:
    """A file with a line more."""

    def write() -> None:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write("\n")

    return write


def own_again() -> str:
    shutil.rmtree("own")
    own()
    return SAME


def iterations() -> None:
    file = Path(P, "settings/training.json")
    settings = json.loads(file.read_text())
    settings["train"]["iterations"] += 1
    file.write_text(json.dumps(settings))


def begun(command: str, write: Callable[[], object] = lambda: None, **more: Any) -> Fault:
    return Fault(command, write, needs=(P,), **more)


BEGUN = {
    "a pipeline of another method": begun(
        f"pipeline --method rloo --output {P}",
        fill={"--output": "other"},
        extra="--dry-run",
    ),
    "a step before those that are done": begun(f"{RESUME} --from 03_sft", extra=DONE),
    "a step that was changed by hand": begun(
        f"{RESUME} {DONE}", grown(f"{P}/00_data_validation/manifest.json"), extra=DONE
    ),
    "something in the place of a step": begun(f"{RESUME} {DONE}", text(f"{P}/01_dataset/mine.txt", "mine")),
    "settings that were changed by hand": begun(f"{RESUME} {DONE}", iterations),
    "a variable that wins over the settings of steps": Fault(
        SAME, own, needs=("own-pipeline",), env={"FINQA_OPTIMIZER__NAME": "rloo"}
    ),
    "data that was changed since": Fault(
        f"pipeline --resume own-pipeline {NEXT}",
        lambda: (own(), grown("own/README.md")()),
        needs=("own-pipeline",),
        by_hand=own_again,
    ),
    "a step that fails": Fault(
        "pipeline --method grpo --data d --output p --quiet",
        lambda: Path("d").mkdir(),
        needs=(),
        by_hand=lambda: write_folder(Path("d")) and f"pipeline --method grpo --data d --output new {DONE}",
        elsewhere=("then",),
    ),
}
