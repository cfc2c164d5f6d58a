"""Calls of the Python interface."""

from __future__ import annotations

from remedies.faults import Fault, new
from remedies.moments import interrupted
from remedies.rows.damaged_runs import NO_JSON, NO_RECORD, document, restored
from remedies.rows.evaluations import unfinished

RECORDED = "finqa_cli.runs.jsonl:JsonlWriter.append"
"""Is called when a record of a run is on disk."""

REOPENED = "finqa_cli.runs.run_folder:RunFolder.reopen"
"""Is called when a run is resumed."""

PLAY = "finqa.evaluate('scripted', limit=2, sandboxes=1"

PYTHON = {
    "an argument that is misspelt": Fault(f"{PLAY}, splitt='dev')", by_hand=new(f"{PLAY}, split='dev')")),
    "an argument that is a setting": Fault(
        f"{PLAY}, breaker_share=0.5)", by_hand=new(f"{PLAY}, settings={{'pool.breaker_share': 0.5}})")
    ),
    "an argument that is none": Fault(f"{PLAY}, qqqq=1)", by_hand=new(f"{PLAY})")),
    "an argument given twice": Fault(f"{PLAY}, seed=1, settings={{'train.seed': 2}})", by_hand=new(f"{PLAY}, seed=1)")),
    "no target": Fault("finqa.evaluate()", by_hand=new(f"{PLAY})"), elsewhere=("give",)),
    "no target of samples": Fault(
        "finqa.sample()", by_hand=new("finqa.sample('random', limit=1, num_candidates=1)"), elsewhere=("give",)
    ),
    "a target beside a run": Fault("finqa.evaluate('scripted', resume='a')", unfinished),
    "arguments beside a run": Fault("finqa.evaluate(resume='a', split='dev')", unfinished),
    "an argument of samples as a setting": Fault(
        "finqa.sample('random', limit=1, num_candidates=1, settings={'generation.top_p': 0.5})",
        by_hand=new("finqa.sample('random', limit=1, num_candidates=1, top_p=0.5)"),
    ),
    "an episode by a text": Fault("finqa.load_run('a').episodes['1']", by_hand=new("finqa.load_run('a').episodes[1]")),
    "an episode that is no JSON": Fault("finqa.load_run('a').episodes[0]", NO_JSON, by_hand=restored),
    "an episode that is no record": Fault("finqa.load_run('a').episodes[0]", NO_RECORD, by_hand=restored),
    "a run that Python does not resume": Fault(
        "finqa.load_run('imitation').resume()", lambda: unfinished("imitation"), needs=("imitation",), instead=True
    ),
    "a recording that Python does not resume": Fault(
        "finqa.load_run('a').resume()", document("a/run.json", command="play")
    ),
    "an evaluation that is interrupted": Fault(f"{PLAY}, run_dir='x')", during=interrupted(RECORDED), instead=True),
    "samples that are interrupted": Fault(
        "finqa.sample('random', limit=2, num_candidates=1, run_dir='x', sandboxes=1)",
        during=interrupted("finqa_cli.runs.jsonl:GroupCommit.append"),
        instead=True,
    ),
    "a training that is interrupted": Fault(
        "finqa.train(resume='training')",
        lambda: unfinished("training"),
        needs=("training",),
        during=interrupted(REOPENED),
        instead=True,
    ),
}
