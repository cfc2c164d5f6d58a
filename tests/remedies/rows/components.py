"""Names and options of components."""

from __future__ import annotations

from remedies.faults import Fault, new, text
from remedies.following import run

COMPONENTS = {
    "no engine": Fault("play --engine scriptd"),
    "no option": Fault("play --engine scripted --set engine.options.unquoted=1"),
    "no plugin": Fault("plugins show nosuch"),
    "nothing to check": Fault("plugins check nosuch"),
    "no name of a plugin": Fault("plugins new reward Bad_Name"),
    "a folder that is taken": Fault(
        "plugins new reward good --out taken", text("taken/x", ""), fill={"ANOTHER-FOLDER": "another"}
    ),
    "no reward": Fault("rewards show nosuch"),
    "no reward to score by": Fault("rewards score a nosuch"),
    "no answers": Fault("rewards score nothere graded", fill={"FILE": "a graded"}),
    "scores that are there": Fault(
        "rewards score a graded", lambda: run("rewards score a graded"), fill={"DIR": "new"}
    ),
    "options of no reward": Fault(
        "eval scripted --set reward.options.x=1 --limit 1", fill={"--reward": "graded"}, then=78
    ),
    "a reward that is not taken": Fault("eval scripted --environment code --reward graded --limit 1"),
    "no sandbox": Fault("sandbox reap nosuch"),
    "no provider": Fault("eval scripted --sandbox nosuch --limit 1"),
    "no grader": Fault("eval scripted --grader no --limit 1"),
    "a snapshot that has no effect": Fault("eval scripted --environment code --snapshot x --limit 1"),
    "no file of an environment": Fault(
        "eval random --environment ./nothere.py --limit 1", by_hand=new("eval random --limit 1")
    ),
}
