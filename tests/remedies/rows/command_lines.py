"""Mistakes on the command line."""

from __future__ import annotations

import os
from pathlib import Path

from fixtures import convfinqa_dialogues, finqa_text_rows, own_tables
from fixtures.data_files import write_folder
from remedies.faults import Fault, new, own, text
from remedies.following import run


def question_file() -> None:
    finqa_text_rows.write(Path("rows.json"), finqa_text_rows.original(1))


def dialogues() -> None:
    convfinqa_dialogues.write(Path("d.json"), *map(convfinqa_dialogues.original, (1, 2, 3)))


def tables() -> None:
    own_tables.as_csv(Path())
    own_tables.write_questions(Path("questions.csv"))


def pairs_of_attempts() -> None:
    run("eval random --limit 2 --split dev --run-dir c")


def without_torchrun() -> None:
    del os.environ["TORCHELASTIC_RUN_ID"]


TORCHRUN = dict.fromkeys(("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "0") | dict.fromkeys(
    ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"
)

LINES = {
    "one variable of torchrun": Fault(
        "train --dry-run --engine scripted --iterations 1 --limit 1", env={"TORCHELASTIC_RUN_ID": "x"}, then=(0, 78)
    ),
    "no command": Fault("nosuch"),
    "no argument": Fault("eval", extra="--limit 1"),
    "no value": Fault("eval scripted --limit"),
    "no such option": Fault("eval scripted --no-such"),
    "no such choice": Fault("pipeline --method grop"),
    "no method": Fault("pipeline", extra="--dry-run"),
    "a final test for finqa": Fault("pipeline --method grpo --final-test x.json --dry-run", then=65),
    "no data of a pipeline": Fault(
        "pipeline --method grpo --data nothere --dry-run", by_hand=lambda: write_folder(Path("nothere")) and None
    ),
    "no pipeline to resume": Fault("pipeline --resume a", by_hand=new("pipeline --method grpo --dry-run")),
    "no experiment": Fault("experiment run nosuch --dry-run", fill={"FILE.toml": "financial_qa_tiny --dry-run"}),
    "no cell": Fault("experiment run financial_qa --only nosuch --dry-run"),
    "no seeds": Fault("experiment run financial_qa --seeds x --dry-run"),
    "a seed twice": Fault("experiment run financial_qa --seeds 1,1 --dry-run"),
    "no TOML of an experiment": Fault(
        "experiment run bad.toml --dry-run", text("bad.toml", "x"), by_hand=new("experiment run financial_qa --dry-run")
    ),
    "a question at two places": Fault(
        "data show --data data --snapshot b x", by_hand=new("data show --data data x"), then=65
    ),
    "an engine beside an engine": Fault("eval scripted --engine random --limit 1"),
    "no experiment is named": Fault("experiment run"),
    "a dry run that repeats": Fault("experiment run financial_qa_tiny --dry-run --keep-going", extra="--dry-run"),
    "pairs of no pairs": Fault("pipeline --method grpo --pair-rule all --dry-run"),
    "a method by --set": Fault("pipeline --method grpo --set optimizer.name=rloo --dry-run"),
    "a run folder of a pipeline": Fault("pipeline --method grpo --set run.dir=x --dry-run"),
    "mistakes that are not made": Fault("pipeline --method grpo --environment code --careful 0.5 --dry-run"),
    "a small policy elsewhere": Fault("pipeline --method grpo --environment code --model embedded --dry-run"),
    "a file of another method": Fault("pipeline --method grpo --config dpo --dry-run"),
    "no demonstrations": Fault("sft", fill={"DIR": "d"}, extra="--set sft.minimum_reward=9", then=65),
    "no pairs to learn from": Fault(
        "dpo", fill={"RUN": "a b --rule all", "DIR": "p"}, extra="--reference-free --set optimizer.name=grpo", then=78
    ),
    "a setting that is a flag": Fault("sample random --limit 1 --num-candidates 1 --set eval.seed=3"),
    "options of a form": Fault("export a --to inspect --license mit"),
    "no folder of runs": Fault("ls nothere", fill={"FOLDER": "."}),
    "an option that gc has not": Fault("gc . --dry-run", by_hand=new("gc .")),
    "nothing to clean": Fault("gc nothere", fill={"FOLDER": "."}),
    "nothing to sample": Fault("sample", extra="--limit 1 --num-candidates 1"),
    "two choices of a push": Fault(
        "push a --repo-prefix x --step 1 --num 2", by_hand=new("push a --repo-prefix x --step 1"), then=2
    ),
    "nothing to set up": Fault("setup nosuch", extra="--python nosuch", then=78),
    "a new model with an adapter": Fault("sft a --init nosuch.toml --lora-rank 4", then=78),
    "torchrun of an evaluation": Fault(
        "eval scripted --limit 1",
        env=TORCHRUN,
        by_hand=without_torchrun,
        elsewhere=("eval",),
    ),
    "both ways to name data": Fault(
        "data show --data data --snapshot b x", by_hand=new("data show --data data x"), then=65
    ),
    "options of no environment": Fault("data check rows.json --set environment.options.skip_bad=true", question_file),
    "a comparison of no environment": Fault("data check rows.json --against rows.json", question_file),
    "a quick test of an environment": Fault("data check rows.json --for finqa-text --quick-test", question_file),
    "a quick test of a folder": Fault("data check own --quick-test", own),
    "dialogues without their environment": Fault(
        "data prepare d.json --out p --set environment.options.skip_bad=true", dialogues
    ),
    "an environment without question files": Fault("data prepare d.json --out p --for finqa", dialogues),
    "no mapping": Fault(
        "data import tables tables --questions q.csv --out p --map bad.toml", text("bad.toml", "a = [")
    ),
    "shares that are none": Fault("data import tables tables --questions questions.csv --out p --splits 1", tables),
    "a flag beside its setting": Fault(
        "eval scripted --limit 1 --set eval.limit=2", by_hand=new("eval scripted --limit 1")
    ),
    "a published flag without a value": Fault(
        "data show x --data-root", by_hand=new("data show x --data nothere"), elsewhere=("--data",), then=65
    ),
    "a published flag of no command": Fault(
        "sft a --batch-size 4",
        by_hand=new("sft a --batch-tokens 400 --set sft.minimum_reward=9"),
        elsewhere=("--batch",),
        then=65,
    ),
    "published keys": Fault(
        "config show --config pub.yaml",
        text("pub.yaml", "training:\n  epochs: 3\n  bf16: true\n"),
        by_hand=text("pub.yaml", "training:\n  epochs: 3\n"),
    ),
}
