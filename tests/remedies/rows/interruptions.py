"""Commands that Ctrl-C ends, and that continue."""

from __future__ import annotations

from remedies.faults import Fault
from remedies.moments import interrupted
from remedies.rows.evaluations import unfinished
from remedies.rows.python_api import REOPENED

WRITTEN = "finqa_cli.runs.jsonl:GroupCommit.append"
"""Is called when a record of a run is to be written."""


def resumed(command: str, run: str) -> Fault:
    """A run that is resumed and interrupted once more."""
    return Fault(
        f"{command} --resume {run}", lambda: unfinished(run), needs=(run,), during=interrupted(REOPENED), instead=True
    )


INTERRUPTIONS = {
    "an evaluation": Fault("eval scripted --limit 2 --run-dir x", during=interrupted(WRITTEN)),
    "candidates": Fault("sample random --limit 2 --num-candidates 1 --run-dir x", during=interrupted(WRITTEN)),
    "a training": resumed("train", "training"),
    "imitation": resumed("sft", "imitation"),
    "imitation that has just begun": Fault(
        "sft of-train --model trained/base --validation-samples 0 --epochs 0.5 --run-dir s",
        needs=("of-train", "trained"),
        during=interrupted("finqa_cli.runs.run_folder:RunFolder.link"),
    ),
    "pairs": resumed("dpo", "preference"),
    "grading again": Fault("eval --rescore a --grader openenv", during=interrupted(WRITTEN)),
}
