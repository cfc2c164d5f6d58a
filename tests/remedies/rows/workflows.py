"""Pipelines and experiments, mostly their plans."""

from __future__ import annotations

from pathlib import Path

from remedies.faults import Fault, new, text

PLAN = "pipeline --method grpo --dry-run"
TEXT = f"{PLAN} --environment finqa-text"
EXPERIMENT = """
[experiment]
name = "e"
cell = "{CELL}"

[variables]
SIZE = 2

[axes.size.small]
SIZE = 2

[axes.size.large]
SIZE = 4

[settings.train]
group_size = "=SIZE"
"""


def experiment(cell: str = "size_{size}", more: str = "") -> str:
    return EXPERIMENT.replace("{CELL}", cell) + more


def changed(write: str, right: str = "") -> Fault:
    """An experiment file with a mistake, which the user corrects."""
    return Fault(
        "experiment run e.toml --dry-run", text("e.toml", write), by_hand=text("e.toml", right or experiment())
    )


WORKFLOWS = {
    "no experiment but settings": Fault(
        "experiment run e.toml --dry-run", text("e.toml", "[train]\nseed = 1\n"), by_hand=text("e.toml", experiment())
    ),
    "an axis that is no list": changed(experiment().replace("[axes.size.small]\nSIZE = 2", "[axes.size]\nsmall = 3")),
    "cells of one name": changed(experiment("same")),
    "no such axis": changed(experiment("{nosuch}")),
    "a cell that is no folder": changed(experiment("a/b_{size}")),
    "a variable of a wrong type": Fault("experiment run financial_qa_tiny --dry-run", env={"ROLLOUT_N": "x"}),
    "a variable without effect": Fault(
        "experiment run financial_qa --dry-run --only nosuch", by_hand=new("experiment run financial_qa --dry-run")
    ),
    "a run folder of cells": changed(experiment(more="\n[settings.run]\ndir = 'x'\n")),
    "a variable that every cell sets": Fault(
        "experiment run e.toml --dry-run", text("e.toml", experiment()), env={"SIZE": "3"}, elsewhere=("choose",)
    ),
    "cells that are alike": Fault(
        "experiment run e.toml --dry-run",
        text("e.toml", experiment().replace("SIZE = 4", "SIZE = 2")),
        elsewhere=("unset the",),
    ),
    "a file of no rows": Fault(f"{TEXT} --data train.json --model a", text("train.json", "[]"), by_hand=new(TEXT)),
    "mistakes that an environment has not": Fault(
        "pipeline --method grpo --environment tatqa --careless 0.5 --dry-run"
    ),
    "no experiment to resume": Fault(
        "experiment run --resume nothere",
        instead=True,
        by_hand=new("experiment run financial_qa --dry-run"),
        extra="--dry-run",
    ),
    "no step": Fault(f"{PLAN} --from nosuch", by_hand=new(f"{PLAN} --from 03_sft")),
    "steps in a wrong order": Fault(f"{PLAN} --from 10_eval --until 03_sft"),
    "no specification": Fault(f"{PLAN} --init nothere.toml", by_hand=new(PLAN)),
    "other data of a small policy": Fault(f"{TEXT} --data a"),
    "no final test": Fault(f"{TEXT} --final-test nothere.json", by_hand=new(TEXT)),
    "a final test without its name": Fault(
        f"{TEXT} --final-test held.json", text("held.json", "[]"), again=f"{TEXT} --final-test held_test.json", then=65
    ),
    "a secret of a pipeline": Fault(
        PLAN, text("finqa.toml", "[engine.options]\napi_key = 'x'\n"), by_hand=text("finqa.toml", "")
    ),
    "no question files": Fault(
        f"{TEXT} --data d --model ./m --dry-run", lambda: (Path("d").mkdir(), Path("m").mkdir()), by_hand=new(TEXT)
    ),
    "a file of no JSON": Fault(f"{TEXT} --data train.json --model a", text("train.json", "{"), by_hand=new(TEXT)),
    "a run number": Fault("pipeline --resume nothere", instead=True, extra="--dry-run", by_hand=new(PLAN)),
    "a run that is no workflow": Fault("pipeline --method grpo --output a", by_hand=new(PLAN)),
    "a damaged workflow": Fault(
        "pipeline --resume w",
        lambda: (Path("w").mkdir(), Path("w/run.json").write_text('{"schema_version": 1, "command": "pipeline"}')),
        by_hand=new(PLAN),
    ),
}
