"""Data that is not trained on, and other faults of data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from fixtures.data_files import DATASET, write_rllm
from remedies.faults import Fault, new
from remedies.rows.damaged_runs import document
from remedies.rows.data import embedded_snapshot, store

from finqa_cli.data import DataSet

TAKEN = "--run-dir a"
"""A folder that is taken: what gets past the guard ends there."""
TRAIN = "train --model embedded --engine transformers --split dev"


def renamed(dataset: DataSet) -> DataSet:
    """The data with its companies and ids under other names."""
    names = {company: f"company_{number}" for number, company in enumerate(dataset.companies())}
    tables = tuple(replace(table, company=names[table.company]) for table in dataset.tables)
    questions = tuple(replace(one, id=f"x{one.id}", company=names[one.company]) for one in dataset.questions)
    return replace(dataset, tables=tables, questions=questions)


def snapshots(**sets: DataSet) -> None:
    for name, dataset in sets.items():
        store().build(name, dataset)


def bytes_for_a_name() -> None:
    (embedded_snapshot().path.parent / "current").write_bytes(b"\xff")


def another_format() -> None:
    manifest = embedded_snapshot().path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 99}))


def bad_rllm() -> None:
    for file in write_rllm(Path("r")).rglob("*.csv"):
        file.write_text(file.read_text().replace("6.82%", ""))


CLOSED = replace(DATASET, evaluation_only=True)
OTHER = replace(renamed(DATASET), evaluation_only=True)

GUARDED = {
    "the test to train on": Fault(f"{TRAIN} --set data.train_split=test {TAKEN}", then=78),
    "a split to train on and to evaluate on": Fault(
        f"{TRAIN} --set data.train_split=dev {TAKEN}",
        by_hand=new(f"{TRAIN} --set data.train_split=train {TAKEN}"),
        elsewhere=("divide",),
        then=78,
    ),
    "data for evaluation only": Fault(
        f"{TRAIN} --snapshot closed {TAKEN}",
        lambda: snapshots(closed=CLOSED),
        home=True,
        by_hand=new(f"{TRAIN} {TAKEN}"),
        then=78,
    ),
    "what other data keeps for evaluation": Fault(
        f"{TRAIN} --snapshot clean {TAKEN}",
        lambda: snapshots(clean=DATASET, other=OTHER),
        home=True,
        by_hand=new(f"{TRAIN} {TAKEN}"),
        then=78,
    ),
    "demonstrations of data for evaluation only": Fault(
        "sft of-train --set sft.minimum_reward=0.5 --run-dir a",
        lambda: (
            snapshots(closed=CLOSED),
            document("of-train/report.json", data={"name": "closed", "digest": "x", "evaluation_only": True})(),
        ),
        needs=("a", "of-train"),
        home=True,
        fill={"NAME": "openenv-finqa --limit 2 --sandboxes 1", "DIR": "d"},
        extra="--set sft.minimum_reward=9",
        then=65,
    ),
    "an export of data for evaluation only": Fault(
        "export a --to trl-sft --out new",
        document("a/report.json", data={"name": "x", "digest": "sha256:0", "evaluation_only": True}),
        extra="",
    ),
    "bytes for the name of a snapshot": Fault("snapshot show openenv-finqa", bytes_for_a_name, home=True),
    "a snapshot of another format": Fault("snapshot show openenv-finqa", another_format, home=True),
    "no good question of rLLM": Fault(
        "data import rllm r --out p --skip-bad",
        bad_rllm,
        by_hand=lambda: shutil.rmtree("r") or (write_rllm(Path("r")) and None),
    ),
}
