"""Policies that are exported and pushed."""

from __future__ import annotations

from pathlib import Path

from remedies.faults import Fault, new, text

RUN = "trained/w"
NEEDS = ("trained",)
PUSH = f"push {RUN} --repo-prefix someone --dry-run"

PUBLISHING = {
    "an adapter of a whole model": Fault("export trained/base --to peft --out new", needs=NEEDS),
    "the precision of an adapter": Fault(f"export {RUN} --to peft --dtype float16 --out new", needs=NEEDS),
    "no precision of llama.cpp": Fault(f"export {RUN} --to gguf-ready --dtype float32 --out new", needs=NEEDS),
    "no such step": Fault(f"export {RUN} --to peft --step 9 --out new", needs=NEEDS),
    "a step of a model": Fault("export trained/base --to merged --step 9 --out new", needs=NEEDS),
    "a damaged checkpoint": Fault(
        f"export {RUN} --to peft --step 2 --out new",
        lambda: Path(RUN, "checkpoints/step_2/checkpoint.json").write_text("{"),
        needs=NEEDS,
    ),
    "a folder that is full": Fault(
        f"export {RUN} --to peft --out taken",
        text("taken/x", ""),
        needs=NEEDS,
        by_hand=new(f"export {RUN} --to peft --out new"),
    ),
    "no file of an adapter": Fault(
        f"export {RUN} --to peft --step 2 --out new",
        lambda: Path(RUN, "checkpoints/step_2/policy/adapter_config.json").unlink(),
        needs=NEEDS,
        by_hand=new(f"export {RUN} --to peft --step 1 --out new"),
    ),
    "the newest of no checkpoints": Fault("push trained/base --repo-prefix someone --dry-run --num 2", needs=NEEDS),
    "an evaluation of several": Fault(
        f"{PUSH} --num 2 --to merged --eval a", needs=(*NEEDS, "a"), fill={"N": "1"}, then=65
    ),
    "a base of this machine": Fault(PUSH, needs=NEEDS, fill={"HUB_ID": "Qwen/Qwen3-4B"}),
    "no name on the hub": Fault(
        "push trained/w --to merged --repo-prefix a..b --dry-run", needs=NEEDS, fill={"OWNER": "someone"}
    ),
}
