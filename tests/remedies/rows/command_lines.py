"""Mistakes on the command line."""

from __future__ import annotations

from pathlib import Path

from fixtures.data_files import write_folder
from remedies.faults import Fault, new, text


LINES = {
    "no command": Fault("nosuch"),
    "no argument": Fault("eval"),
    "no value": Fault("eval scripted --limit"),
    "no such option": Fault("eval scripted --no-such"),
    "no such choice": Fault("pipeline --method grop"),
    "no method": Fault("pipeline", extra="--dry-run"),
    "a final test for finqa": Fault("pipeline --method grpo --final-test x.json --dry-run", then=65),
    "no data of a pipeline": Fault(
        "pipeline --method grpo --data nothere --dry-run", by_hand=lambda: write_folder(Path("nothere")) and None
    ),
    "no pipeline to resume": Fault("pipeline --resume a", by_hand=new("pipeline --method grpo --dry-run")),
    "no experiment": Fault("experiment run nosuch --dry-run", fill={"FILE.toml": "financial_qa_tiny --dry-run"}),
    "no cell": Fault("experiment run financial_qa --only nosuch --dry-run"),
    "no seeds": Fault("experiment run financial_qa --seeds x --dry-run"),
    "a seed twice": Fault("experiment run financial_qa --seeds 1,1 --dry-run"),
    "no TOML of an experiment": Fault(
        "experiment run bad.toml --dry-run", text("bad.toml", "x"), by_hand=new("experiment run financial_qa --dry-run")
    ),
    "a question at two places": Fault(
        "data show --data data --snapshot b x", by_hand=new("data show --data data x"), then=65
    ),
}
