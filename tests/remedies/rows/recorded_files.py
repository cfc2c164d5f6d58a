"""Files of recorded attempts: damaged, of other data, or without what a command needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixtures.data_files import DATASET
from remedies.faults import Fault, new, own, text
from remedies.following import run
from remedies.rows.damaged_runs import ATTEMPTS, NO_RECORD, compared, document, lines, restored
from remedies.rows.evaluations import unfinished

AFTERWARDS = "compare a b --no-plots"


def records(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """Change each record of a file of lines in place."""

    def write(all_lines: list[str]) -> list[str]:
        found = [json.loads(line) for line in all_lines]
        for record in found:
            change(record)
        return [json.dumps(record) for record in found]

    return lines(name, write)


HALF_A_RECORD = records(ATTEMPTS, lambda record: record.pop("metadata"))
"""Its outcome can be read, and no episode."""


KNOWN = json.dumps({DATASET.questions[0].id: "1"})


def asked_otherwise() -> None:
    records("b/trajectories.jsonl", lambda record: record["task"].update(prompt="What else?"))()


def right_again() -> None:
    run("eval random --limit 2 --split dev --run-dir right")
    shutil.copy("right/trajectories.jsonl", "b/trajectories.jsonl")


def digest(of: str) -> Callable[[], object]:
    """The evaluation `a` as if its data had had another digest."""

    def write() -> None:
        manifest = json.loads(Path("a/manifest.json").read_text())
        manifest["inputs"]["data"]["digest"] = of
        Path("a/manifest.json").write_text(json.dumps(manifest))

    return write


def graded_by_a_removed_version() -> None:
    settings = Path("a/settings.json")
    recorded = json.loads(settings.read_text())
    recorded["environment"]["options"]["grader"] = "strict-2"
    settings.write_text(json.dumps(recorded))


def untargeted() -> None:
    unfinished()
    document("a/run.json", target=None)()
    document("a/manifest.json", parameters=None)()


FILES = {
    "half a record, shown": Fault("show a 1", HALF_A_RECORD, by_hand=restored),
    "half a record, reported": Fault(
        "report a", records(ATTEMPTS, lambda record: record.pop("seed")), by_hand=restored
    ),
    "a record to grade again": Fault("eval --rescore a --grader strict", NO_RECORD, by_hand=restored),
    "no attempts to grade again": Fault(
        "eval --rescore a --grader strict",
        lines(ATTEMPTS, lambda each: []),
        by_hand=new("eval --rescore b --grader strict"),
    ),
    "other data to grade again": Fault(
        "eval --rescore a --grader strict", digest("sha256:0"), by_hand=new("eval --rescore b --grader strict")
    ),
    "grading rules that were removed": Fault(
        "eval --rescore a --reward graded", graded_by_a_removed_version, {"RUN": "a"}, instead=True
    ),
    "no policy to evaluate": Fault("eval --resume a", untargeted, {"TARGET": "scripted --limit 1"}, instead=True),
    "runs of one label without a common question": Fault(
        "compare x=a x=of-train y=b --no-plots", needs=("a", "b", "of-train"), by_hand=new("compare a=a b=b --no-plots")
    ),
    "a question that is not the same": Fault(AFTERWARDS, asked_otherwise, by_hand=right_again),
    "no known prediction of FinQA": Fault(
        "score x.json --metric openenv --truth own",
        lambda: (own(), text("x.json", '{"nosuch": "1"}')()),
        by_hand=text("x.json", KNOWN),
    ),
    "predictions that are a folder": Fault(
        "score a --metric openenv --truth own",
        lambda: (own(), text("x.json", KNOWN)()),
        by_hand=new("score x.json --metric openenv --truth own"),
    ),
    "lines of predictions that are a folder": Fault(
        "score d.jsonl --metric openenv --truth own",
        lambda: (own(), Path("d.jsonl").mkdir(), text("x.json", KNOWN)()),
        by_hand=new("score x.json --metric openenv --truth own"),
    ),
    "runs of one label with other questions": Fault(
        "compare x=a x=d y=b --no-plots",
        lambda: run("eval scripted --limit 2 --split dev --set eval.seed=5 --run-dir d"),
        by_hand=new("compare a=a b=b --no-plots"),
    ),
    "a training without an evaluation": Fault(
        "compare training b --no-plots",
        lines("training/metrics.jsonl", lambda each: [line for line in each if '"eval"' not in line]),
        needs=("a", "b", "training"),
        fill={"DIR": "d --limit 2 --split dev --max-steps 1"},
        again="compare d b --no-plots",
    ),
    "a training without attempts to export": Fault(
        "export training --to inspect --out new",
        lines("training/trajectories.jsonl", lambda each: [line for line in each if '"phase": "eval"' not in line]),
        needs=("training",),
        fill={"eval training": "eval training --limit 1 --split dev --max-steps 1", "DIR": "d"},
        extra="--out new",
    ),
    "attempts without parts of a reward": compared(records(ATTEMPTS, lambda record: record.update(components=None))),
    "truths of no snapshot": Fault(
        "rewards score code graded",
        lambda: run("eval scripted --environment code --limit 1 --split dev --run-dir code"),
        {"FILE": "truths.jsonl"},
        then=65,
    ),
}
