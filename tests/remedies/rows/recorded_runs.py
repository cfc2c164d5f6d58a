"""Runs that are evaluated, compared, planned, exported and resumed."""

from __future__ import annotations

from remedies.faults import Fault, new, text
from remedies.following import run

RUNS = {
    "a run that is there": Fault(
        "eval scripted --limit 1 --run-dir a", by_hand=new("eval scripted --limit 1 --run-dir new")
    ),
    "no split": Fault("eval scripted --limit 1 --split nosuch"),
    "a folder that cannot be": Fault(
        "eval scripted --limit 1 --run-dir plain/x",
        text("plain", "x"),
        by_hand=new("eval scripted --limit 1 --run-dir y"),
    ),
    "a run without a policy": Fault("eval a", by_hand=new("eval scripted --limit 1")),
    "no question": Fault("play --engine scripted --question nope"),
    "no run to compare": Fault(
        "compare nothere a --no-plots", fill={"TARGET": "scripted --limit 2 --split dev", "FOLDER": "nothere"}
    ),
    "a run twice": Fault("compare a a", by_hand=new("compare a b --no-plots")),
    "one run": Fault("compare a", by_hand=new("compare a b --no-plots"), fill={}),
    "no baseline": Fault("compare a b --baseline nosuch --no-plots"),
    "a report that is there": Fault(
        "compare a b --out taken --no-plots", text("taken/x", ""), by_hand=new("compare a b --out new --no-plots")
    ),
    "seeds of one method": Fault("compare x=a x=b --no-plots", by_hand=new("compare a=a b=b --no-plots")),
    "a plan of nothing": Fault("plan", fill={"N": "100", "RUN": "a --accuracy 0.9"}),
    "a plan of certainty": Fault("plan --questions 100 --accuracy 1", fill={"--accuracy": "0.9"}),
    "a plan of three runs": Fault("plan --from a --from b --from c", by_hand=new("plan --from a --accuracy 0.9")),
    "a plan of like runs": Fault("plan --from a --from b", by_hand=new("plan --from a --accuracy 0.9")),
    "a plan of two runs": Fault("plan --from a --from b --accuracy 0.5", then=65),
    "a difference of 2": Fault("plan --questions 100 --difference 2"),
    "sandboxes without hours": Fault("plan --sandboxes 50", fill={"H": "2"}),
    "sandboxes and questions": Fault("plan --sandboxes 50 --hours 2 --questions 100"),
    "no hours": Fault("plan --sandboxes 50 --hours 0"),
    "local sandboxes are no plan": Fault("plan --hours 2 --sandbox local"),
    "pairs of a log": Fault("export a --to inspect --rule all --out new"),
    "a choice of a log": Fault("export a --to inspect --min-reward 1 --out new"),
    "a step of attempts": Fault("export a --to trl-sft --step 1 --out new"),
    "an export that is there": Fault(
        "export a --to trl-sft --out taken", text("taken/x", ""), by_hand=new("export a --to trl-sft --out new")
    ),
    "no attempt is chosen": Fault("export b --to trl-sft --min-reward 1 --out new"),
    "one side of pairs": Fault("export a --to trl-preference --min-reward 1 --out new", then=65),
    "a step that is not there": Fault("export a --to inspect --step 7 --out new"),
    "no metric": Fault(
        "score x.json --metric no --truth a", by_hand=new("score x.json --metric finqa --truth a"), then=65
    ),
    "no pairs": Fault(
        "prefs a --run-dir new",
        fill={"TARGET": "random --limit 2 --run-dir s"},
        again="prefs s --run-dir new",
        then=65,
    ),
    "a margin below 0": Fault("prefs a --margin -1 --run-dir new", then=65),
    "no attempts": Fault("prefs nowhere", fill={"TARGET": "random --limit 2 --run-dir nowhere"}, then=65),
    "greedy candidates": Fault("sample random --limit 1 --temperature 0"),
    "a run of another command": Fault("sample --resume a", by_hand=new("sample random --limit 1")),
    "no run to resume": Fault(
        "sample --resume nowhere", fill={"RUN": "s"}, write=lambda: run("sample random --limit 1 --run-dir s")
    ),
    "a policy beside a run": Fault(
        "sample random --resume s", write=lambda: run("sample random --limit 1 --run-dir s")
    ),
    "nothing to export": Fault("export nothere --to trl-sft --out new", fill={"DIR": "nothere --limit 2"}),
}
