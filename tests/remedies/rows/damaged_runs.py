"""Files of runs that are damaged, incomplete or of other data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixtures.report_runs import evaluated
from remedies.faults import Fault, new, text
from remedies.following import run
from remedies.rows.command_lines import question_file

AGAIN = {"TARGET": "scripted --limit 2 --split dev --run-dir c", "FOLDER": "c"}


def document(name: str, **changes: Any) -> Callable[[], object]:
    """Change values of a JSON document; None removes one."""

    def write() -> None:
        values = {**json.loads(Path(name).read_text()), **changes}
        Path(name).write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return write


def lines(name: str, change: Callable[[list[str]], list[str]]) -> Callable[[], object]:
    """Change the lines of a file."""
    return lambda: Path(name).write_text("".join(f"{line}\n" for line in change(Path(name).read_text().splitlines())))


def without(name: str) -> Callable[[], object]:
    return lambda: Path(name).unlink()


def compared(write: Callable[[], object]) -> Fault:
    """A comparison that a damaged run prevents, and one with a run that was evaluated again."""
    return Fault(
        "compare a b --no-plots",
        write,
        AGAIN,
        by_hand=lambda: run(f"eval {AGAIN['TARGET']}") or "compare c b --no-plots",
        again="compare c b --no-plots",
    )


ATTEMPTS = "a/trajectories.jsonl"
NO_RECORD = lines(ATTEMPTS, lambda all_lines: ["{}", *all_lines[1:]])
NO_JSON = lines(ATTEMPTS, lambda all_lines: ["{", *all_lines[1:]])


def restored() -> None:
    """The user puts the right line back."""
    run("eval scripted --limit 2 --split dev --run-dir right")
    shutil.copy("right/trajectories.jsonl", ATTEMPTS)


def ungraded() -> None:
    def change(all_lines: list[str]) -> list[str]:
        records = [json.loads(line) for line in all_lines]
        fault = {"reward": None, "components": None, "status": "sandbox_error", "error": "x"}
        return [json.dumps({**record, **fault}) for record in records]

    lines(ATTEMPTS, change)()


def trainings() -> None:
    """Two trainings that differ in nothing, and a control of them, and one with another seed."""
    evaluated(Path("t"))
    evaluated(Path("u"))
    evaluated(Path("c"), shuffled=True)
    evaluated(Path("d"), shuffled=True, settings={"train": {"seed": 1, "shuffle_rewards": True}})


def reported(command: str, *needs: str) -> Fault:
    """A report with a control that is none, which the remedy replaces by one that can be written."""
    return Fault(command, trainings, needs=needs, instead=True)


DAMAGED = {
    "an unfinished evaluation": compared(document("a/run.json", status="running")),
    "settings of a run that are none": compared(text("a/report.json", "[]")),
    "no report of an evaluation": compared(without("a/report.json")),
    "an attempt that is no record": compared(NO_RECORD),
    "an attempt twice": compared(lines(ATTEMPTS, lambda each: [each[0], each[0]])),
    "an attempt less": compared(lines(ATTEMPTS, lambda each: each[:1])),
    "no graded attempt": compared(ungraded),
    "no attempts at all": compared(without(ATTEMPTS)),
    "a run of another version": Fault(
        "compare a b --no-plots",
        document("a/run.json", schema_version=99),
        by_hand=lambda: run(f"eval {AGAIN['TARGET']}") or "compare c b --no-plots",
    ),
    "a run that evaluates nothing": Fault(
        "compare candidates b --no-plots", needs=("a", "candidates", "b"), by_hand=new("compare a b --no-plots")
    ),
    "runs of different settings": Fault(
        "compare a of-train --no-plots", needs=("a", "b", "of-train"), by_hand=new("compare a b --no-plots")
    ),
    "a copy of a run": Fault(
        "compare a c --no-plots", lambda: shutil.copytree("a", "c"), by_hand=new("compare a b --no-plots")
    ),
    "runs of other questions": Fault(
        "compare a d --no-plots",
        lambda: run("eval scripted --limit 2 --split dev --set eval.seed=5 --run-dir d"),
        by_hand=new("compare a b --no-plots"),
    ),
    "a run that is no label": Fault("compare a =", by_hand=new("compare a b --no-plots")),
    "an episode that is no record, shown": Fault("show a 1", NO_RECORD, by_hand=restored),
    "an episode that is no record, reported": Fault("report a", NO_RECORD, by_hand=restored),
    "a line that is no JSON": Fault("report a", NO_JSON, by_hand=restored),
    "an outcome that is no record": Fault("show a", NO_RECORD, by_hand=restored),
    "several episodes": Fault("show a eval", by_hand=new("show a 1")),
    "no episode": Fault("show a 77", by_hand=new("show a 1")),
    "no run to show": Fault("show nothere", by_hand=new("show a")),
    "no run to watch": Fault("top nothere", by_hand=new("top a")),
    "no run to report": Fault("report nothere", by_hand=new("report a")),
    "no run folder to report": Fault("report plain", lambda: Path("plain").mkdir(), by_hand=new("report a")),
    "nothing to report": Fault("report a", lines(ATTEMPTS, lambda each: []), by_hand=new("report b")),
    "three runs to report": Fault("report a b of-train", needs=("a", "b", "of-train"), instead=True, then=65),
    "one run to report twice": Fault("report a a"),
    "two runs with one control": reported("report t u --control c"),
    "a run as its own control": reported("report t --control t"),
    "a control of an evaluation": reported("report a --control c", "a"),
    "a control in the place of its training": reported("report c --control t"),
    "a control that learned": reported("report t --control u"),
    "a control of another seed": reported("report t --control d"),
    "a folder as report": Fault("report a --out b"),
    "a file that is no report": Fault(
        "report a --out x.html", text("x.html", "x"), by_hand=new("report a --out y.html")
    ),
    "no pairs in a file": Fault(
        "dpo nothere",
        fill={"RUN": "a b --rule all --run-dir nothere"},
        again="dpo nothere --set optimizer.name=grpo",
        then=78,
    ),
    "attempts for a log": Fault("export a --to trl-sft --out new", NO_RECORD, by_hand=restored),
    "a run without an evaluation": Fault(
        "export trained/w --to inspect --out new --step 1",
        needs=("trained",),
        by_hand=new("export trained/w --to inspect --out new --step 2"),
    ),
    "pairs paired again": Fault("export pairs --to trl-preference --rule all --out new", needs=("pairs",)),
    "answers of JSON": Fault("rewards score a graded --set reward.options.format=json"),
    "scores beside their answers": Fault(
        "rewards score scores/scores.jsonl graded --out scores --truth x",
        lambda: run("rewards score a graded --out scores"),
        fill={"DIR": "new"},
        then=65,
    ),
    "bad answers": Fault(
        "rewards score answers.jsonl graded",
        text("answers.jsonl", '{"id": "x", "solution": "1", "truth": "1"}\n{}\n'),
        by_hand=text("answers.jsonl", '{"id": "x", "solution": "1", "truth": "1"}\n'),
    ),
    "truths of other data": Fault(
        "rewards score a graded",
        document("a/report.json", data={"name": "x", "digest": "sha256:0"}),
        {"FILE": "x"},
        then=65,
    ),
    "a verdict that is no reward": Fault("rewards test environment", by_hand=new("rewards test weighted")),
    "no known prediction": Fault(
        "score x.json --metric finqa --truth t.json",
        lambda: (text("x.json", "[]")(), question_file()),
        by_hand=new("score x.json --metric finqa --truth rows.json"),
        then=65,
    ),
    "no predictions": Fault("score x.json --metric openenv --truth a", by_hand=text("x.json", "{}"), then=65),
    "predictions that are no JSON": Fault(
        "score x.json --metric openenv --truth a", text("x.json", "{"), by_hand=text("x.json", "{}"), then=65
    ),
    "predictions of no form": Fault(
        "score x.json --metric openenv --truth a", text("x.json", "3"), by_hand=text("x.json", "{}"), then=65
    ),
    "correlations that cannot be": Fault(
        "plan --questions 100 --paired-correlation 0.9 --attempt-correlation 0.1 --attempts 4 --accuracy 0.5",
        fill={"--paired-correlation": "0.05", "--attempt-correlation": "0.95"},
    ),
    "a reward without tests": Fault("rewards test graded", fill={"FILE": "a"}, instead=True),
}
