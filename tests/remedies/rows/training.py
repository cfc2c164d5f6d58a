"""Settings and data of trainings; each ends at another fault before anything is learned."""

from __future__ import annotations

from pathlib import Path

from remedies.faults import Fault, new
from remedies.following import run
from remedies.rows.damaged_runs import document

NO_MODEL = "--model ./nothere"
NO_ENGINE = "--engine scripted"
PLAN = "pipeline --method grpo --dry-run"
ONE_STEP = "pipeline --method ppo --dry-run --set optimizer.options.minibatches=1 --set optimizer.options.epochs=1"

TRAINING = {
    "pairs wanted": Fault(
        "train --set optimizer.name=dpo",
        needs=("a", "b", "pairs"),
        fill={
            "TARGET": "random --limit 1 --num-candidates 1 --run-dir s",
            "RUN": "a b --rule all --run-dir p",
            "PAIRS": f"p {NO_MODEL}",
        },
        then=78,
    ),
    "demonstrations wanted": Fault(
        "train --set optimizer.name=sft",
        needs=("of-train",),
        fill={"RUN": "of-train --set sft.minimum_reward=9"},
        instead=True,
        then=65,
    ),
    "sampling from a nucleus": Fault(f"train --iterations 1 --set generation.top_p=0.5 {NO_ENGINE}", then=78),
    "an option without effect": Fault(f"{PLAN} --set optimizer.options.clip_high=0.3", by_hand=new(PLAN)),
    "an option of PPO without effect": Fault(f"{ONE_STEP} --set optimizer.options.clip_high=0.3"),
    "a limit on KL without effect": Fault(f"{ONE_STEP} --set optimizer.options.target_kl=0.3"),
    "KL that is off": Fault(f"{PLAN} --set optimizer.options.kl_estimator=k1"),
    "steps of the optimizer": Fault(
        f"train --iterations 1 --set train.updates_per_iteration=2 --set optimizer.name=ppo {NO_ENGINE}", then=78
    ),
    "too long an overlong buffer": Fault(
        f"train --iterations 1 --set train.truncated=penalize --set train.overlong_buffer=100000 {NO_ENGINE}", then=78
    ),
    "two schedules": Fault(
        "train --iterations 1 --set train.schedule=cosine --set learner.options.schedule=cosine",
        by_hand=new(f"train --iterations 1 --set train.schedule=cosine {NO_ENGINE}"),
        then=78,
    ),
    "an engine that cannot train": Fault(
        "train --iterations 1 --engine scripted --set data.max_prompt_tokens=1", then=65
    ),
    "replicas of an engine of messages": Fault("eval scripted --engine-replicas 2 --limit 1"),
    "tokens of an engine without": Fault(
        "train --dry-run --engine scripted --iterations 1 --limit 1 --set data.max_prompt_tokens=1",
        fill={"data.max_prompt_tokens": "--set data.max_prompt_tokens"},
        then=(0, 65),
    ),
    "no step of imitation": Fault(
        "sft of-train --epochs 0.01 --set learner.options.device=cuda", needs=("of-train",), then=78
    ),
    "no specification of a model": Fault(
        "sft of-train --init nothere.toml",
        needs=("of-train",),
        by_hand=new("sft of-train --set sft.minimum_reward=9"),
        then=65,
    ),
    "no step of pairs": Fault("dpo pairs --epochs 0.01 --set learner.options.device=cuda", needs=("pairs",), then=78),
    "a method without pairs": Fault("dpo pairs --set optimizer.name=grpo --epochs 0.01", needs=("pairs",), then=65),
    "a run of pairs twice": Fault("prefs a a --rule all --run-dir p", then=65),
    "a folder of pairs that is full": Fault(
        "prefs a b --rule all --run-dir a", by_hand=new("prefs a b --rule all --run-dir p")
    ),
    "runs of other rewards": Fault(
        "prefs a d --rule all --run-dir p",
        lambda: run("eval random --limit 2 --split dev --grader openenv --run-dir d"),
        {"RUN": "a b --rule all --run-dir q"},
        by_hand=new("prefs a b --rule all --run-dir p"),
    ),
    "limits on pairs": Fault(
        "train --pairs pairs --limit 3",
        needs=("pairs",),
        instead=True,
        fill={"dpo pairs": "dpo pairs --epochs 0.01"},
        then=65,
    ),
    "GPUs that are none": Fault("doctor --assume-gpus x"),
    "no model": Fault("eval ./nothere --limit 1", by_hand=new("eval scripted --limit 1")),
    "a folder that is no policy": Fault(
        "eval b/logs --limit 1", lambda: Path("b/logs").mkdir(exist_ok=True), by_hand=new("eval scripted --limit 1")
    ),
    "no such hub id": Fault(
        "eval no/such --limit 1",
        env={"HF_HUB_OFFLINE": "1"},
        by_hand=new("eval scripted --limit 1"),
        elsewhere=("unset",),
    ),
    "a run of imitation resumed as training": Fault("train --resume candidates", needs=("candidates",), instead=True),
    "options of a resumed run": Fault("sample --resume candidates --limit 3", needs=("candidates",)),
    "a run without parameters": Fault(
        "sample --resume candidates",
        lambda: document("candidates/manifest.json", parameters=None)(),
        needs=("candidates",),
        by_hand=new("sample random --limit 1 --num-candidates 1 --split dev"),
    ),
}
