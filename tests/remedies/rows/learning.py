"""Trainings whose data, prompts or pairs do not fit."""

from __future__ import annotations

import json
from pathlib import Path

from remedies.faults import Fault, new
from remedies.rows.damaged_runs import document
from remedies.rows.recorded_files import records

SHORT = "train --dry-run --model embedded --iterations 1 --group-size 2 --target-groups-per-iter 1 --limit 1"
LAST = "--set learner.options.device=cuda --epochs 0.01"
PAIRS = "pairs/pairs.jsonl"
RULE = "--rule all --run-dir p"


def without_graded() -> None:
    records(
        "a/trajectories.jsonl",
        lambda record: record.update(reward=None, components={}, status="sandbox_error", error="x"),
    )()


def other_prompts() -> None:
    records("b/trajectories.jsonl", lambda record: record["messages"][0].update(content="Other."))()


def other_data() -> None:
    report = json.loads(Path("b/report.json").read_text())
    document("b/report.json", data={**report["data"], "digest": "sha256:1"})()


def of_pairs(change: object, then: int = 65) -> Fault:
    return Fault(
        f"dpo pairs {LAST}",
        records(PAIRS, change),  # type: ignore[arg-type]
        needs=("a", "b", "pairs"),
        fill={"RUN": "a b --rule all --run-dir p"},
        again=f"dpo p {LAST}",
        then=then,
    )


def short_scores() -> None:
    file = Path("candidates/scores.jsonl")
    file.write_text("")


LEARNING = {
    "prompts that are all too long": Fault(f"{SHORT} --set data.max_prompt_tokens=1", needs=()),
    "pairs of another version": of_pairs(lambda record: record.update(schema_version=99)),
    "pairs that are none": of_pairs(lambda record: record.pop("chosen")),
    "a pair that prefers the worse": of_pairs(lambda record: record["chosen"].update(reward=-1.0)),
    "no pair to train on": of_pairs(lambda record: record.update(held_out=True)),
    "no graded attempt": Fault(
        f"prefs a {RULE}",
        without_graded,
        fill={"TARGET": "random --limit 1 --num-candidates 1 --run-dir s"},
        again=f"prefs s {RULE}",
        then=65,
    ),
    "attempts that do not open alike": Fault(
        f"prefs a b {RULE}", other_prompts, by_hand=new(f"prefs a {RULE}"), then=65
    ),
    "runs over other data": Fault(
        f"prefs a b {RULE}",
        other_data,
        fill={"RUN": "a --rule all --run-dir q"},
        then=65,
    ),
    "candidates without their scores": Fault(f"prefs candidates {RULE}", short_scores, needs=("candidates",), then=65),
    "candidates of another version": Fault(
        f"prefs candidates {RULE}",
        records("candidates/candidates.jsonl", lambda record: record.update(schema_version=99)),
        needs=("candidates",),
        fill={"TARGET": "random --limit 1 --num-candidates 1 --run-dir s"},
        again=f"prefs s {RULE}",
        then=65,
    ),
}
