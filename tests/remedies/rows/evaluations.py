"""Evaluations that did not end, are resumed, stopped by a limit, or graded again."""

from __future__ import annotations

import json
from pathlib import Path

from remedies.faults import Fault, new


def unfinished(run: str = "a") -> None:
    """Takes the last word of a run away, as a signal does."""
    file = Path(run, "run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "interrupted"}))


EVALUATIONS = {
    "nothing to evaluate": Fault("eval", extra="--limit 1", by_hand=new("eval scripted --limit 1")),
    "an evaluation that is finished": Fault("eval --resume a"),
    "an evaluation begun with other settings": Fault(
        "eval scripted --limit 1 --seed 5 --run-dir a", unfinished, by_hand=new("eval --resume a")
    ),
    "a finished folder": Fault(
        "eval scripted --limit 1 --run-dir a", by_hand=new("eval scripted --limit 1 --run-dir new")
    ),
    "nothing to grade again": Fault(
        "eval --rescore nowhere --grader strict", by_hand=new("eval --rescore a --grader strict")
    ),
    "no other rules": Fault("eval --rescore a"),
    "a flag of play": Fault("eval --rescore a --limit 3"),
    "a setting of play": Fault("eval --rescore a --set eval.temperature=1", fill={"TARGET": "scripted --limit 1"}),
    "tokens of an engine without": Fault(
        "eval scripted --limit 1 --max-tokens 5", by_hand=new("eval scripted --limit 1")
    ),
    "a cost without a price": Fault("eval random --limit 1 --max-cost 5", fill={"PRICE": "0.1"}),
    "a grader that is none": Fault("eval --rescore a --grader no", by_hand=new("eval --rescore a --grader strict")),
}
