"""Further command lines: options that exclude each other, targets that moved, files that are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from remedies.faults import Fault, new, text
from remedies.following import run
from remedies.rows.damaged_runs import document
from remedies.rows.user_code import GOOD

CONVERT = "export trained/base --to gguf-ready --out x"


def moved_target() -> None:
    run("eval trained/w --limit 1 --split dev --sandboxes 1 --max-steps 1 --max-gen-tokens 2 --run-dir e")
    Path("trained").rename("elsewhere")


def more_tokens() -> None:
    file = Path("trained/base/tokenizer.json")
    facts = json.loads(file.read_text())
    facts["added_tokens"].append({**facts["added_tokens"][0], "id": 10**6, "content": "<further>"})
    file.write_text(json.dumps(facts))


def of_another() -> None:
    """A run that began from another policy."""
    document("learned/run.json", status="interrupted")()
    shutil.copy("learned/run.json", "kept.json")
    document("learned/run.json", **{"policy digest": "x"})()


def of_a_file() -> None:
    text("env.py", GOOD)()
    run("eval random --environment ./env.py --limit 1 --split train --sandboxes 1 --run-dir e")


FURTHER = {
    "all options at once": Fault(
        "config show --set engine.options={} --set engine.options.x=1", by_hand=new("config show"), needs=()
    ),
    "mistakes that a model of its own does not make": Fault(
        "pipeline --method grpo --environment tatqa --model trained/base --careful --dry-run", needs=("trained",)
    ),
    "a policy that was moved": Fault(
        "compare e a --no-plots",
        moved_target,
        needs=("a", "trained"),
        fill={"TARGET": "scripted --limit 1 --split dev", "FOLDER": "f"},
        again="compare f a --no-plots",
        by_hand=lambda: Path("elsewhere").rename("trained") and "compare e a --no-plots",
        then=(0, 65),
    ),
    "a model that llama.cpp does not read": Fault(CONVERT, more_tokens, needs=("trained",)),
    "requirements for a Python that is none": Fault(
        "setup vllm --requirements r.txt --python nosuch",
        lambda: (text("r.txt", "-r nothere.txt\n")(), text("good.txt", "")()),
        {"FILE": "good.txt", "--requirements": "good.txt"},
        then=78,
        needs=(),
    ),
    "no split to make a policy on": Fault(
        "policy make --environment ./env.py --set data.train_split=nosuch",
        text("env.py", GOOD),
        {"NAME": "train"},
        needs=(),
        then=78,
    ),
    "no other rules of an environment without a grader": Fault(
        "eval --rescore e", of_a_file, {"TARGET": "random --environment ./env.py --limit 1 --split train"}, needs=()
    ),
    "another policy of a run that is resumed": Fault(
        "sft --resume learned",
        of_another,
        needs=("of-train", "trained", "learned"),
        by_hand=lambda: shutil.copy("kept.json", "learned/run.json") and None,
    ),
}
