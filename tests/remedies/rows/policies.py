"""Policies that cannot be found, placed, played or trained from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.model_hub import Failure
from remedies.faults import Fault, new, text
from remedies.rows.damaged_runs import document
from remedies.rows.hubs import models
from remedies.rows.user_code import GOOD

W, BASE = "trained/w", "trained/base"
NEEDS = ("trained",)
TAKEN = "--run-dir taken"
HERE = "eval scripted --limit 1"


@contextmanager
def hub(*failures: Failure, url: str = "") -> Iterator[Any]:
    """A hub whose address the client has; or another address."""
    from huggingface_hub import constants

    with models(*failures)() as server, pytest.MonkeyPatch.context() as patch:
        for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
            value = getattr(constants, name).replace(constants.ENDPOINT, url or server.url)
            patch.setattr(constants, name, value)
        yield SimpleNamespace(url=server.url)


def begun(run: str) -> None:
    """A run that began from an adapter, merged into a whole model."""
    shutil.copytree("trained/base", f"{run}/start")
    Path(run, "start.json").write_text(json.dumps({"schema_version": 1, "sha256": "0"}))


def damage_all() -> None:
    for file in Path(W, "checkpoints").glob("step_*/checkpoint.json"):
        file.write_text("{")
    for file in Path(W, "checkpoints").glob("step_*/manifest.json"):
        file.write_text("{")


def restore_one() -> None:
    shutil.rmtree(f"{W}/checkpoints")
    shutil.copytree("kept", f"{W}/checkpoints")


def adapter() -> None:
    shutil.copytree(f"{W}/checkpoints/step_2/policy", "ad")


def other_kind() -> None:
    adapter()
    file = Path("ad/adapter_config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "peft_type": "IA3"}))


def tree() -> None:
    """A folder of a trainer that keeps its steps in folders of its own."""
    Path("tree/global_step_1/actor").mkdir(parents=True)
    Path("tree/latest_checkpointed_iteration.txt").write_text("x")


POLICIES = {
    "a pipeline as a policy": Fault(
        "eval p --limit 1",
        lambda: (
            shutil.copytree(W, "p/03_sft"),
            Path("p/run.json").write_text('{"schema_version": 1, "command": "pipeline"}'),
        ),
        needs=NEEDS,
        by_hand=new("eval p/03_sft --limit 1 --sandboxes 1 --max-gen-tokens 2 --max-steps 1"),
    ),
    "a small policy to train in another environment": Fault(
        "train --environment ./env.py --model embedded --iterations 1 --split train --allow-overlap",
        text("env.py", GOOD),
        fill={"MODEL": "trained/base"},
        again="train --environment ./env.py --model trained/base --iterations 1 --engine scripted",
        needs=NEEDS,
        then=78,
    ),
    "a small policy to play another environment": Fault(
        "eval embedded --environment ./env.py --limit 1 --split train --max-gen-tokens 2 --max-steps 1",
        text("env.py", GOOD),
        needs=NEEDS,
        by_hand=new(
            "eval trained/base --environment ./env.py --limit 1 --split train --max-gen-tokens 2 --max-steps 1"
        ),
        then=(0, 78),
    ),
    "no such model on the hub": Fault(
        "eval no/such --limit 1",
        server=lambda: hub(Failure(where="no/such", status=404, times=9, headers={"X-Error-Code": "RepoNotFound"})),
        by_hand=new(HERE),
        elsewhere=("hf", "for a private"),
    ),
    "no possible name on the hub": Fault("eval x--y --limit 1", by_hand=new(HERE), elsewhere=("hf", "for a private")),
    "a hub that does not answer": Fault(
        "eval no/such --limit 1", server=lambda: hub(url="http://127.0.0.1:9"), by_hand=new(HERE)
    ),
    "a start that was changed": Fault(
        "train --resume training --iterations 2",
        lambda: begun("training"),
        needs=(*NEEDS, "training"),
        by_hand=new(f"train --model trained/base --engine scripted {TAKEN}"),
        then=78,
    ),
    "checkpoints that are all damaged": Fault(
        f"export {W} --to peft --out new",
        lambda: (shutil.copytree(f"{W}/checkpoints", "kept"), damage_all()),
        needs=NEEDS,
        by_hand=restore_one,
    ),
    "an adapter for an engine of messages": Fault(
        f"eval {W} --engine scripted --limit 1",
        needs=NEEDS,
        extra="--max-gen-tokens 2 --max-steps 1",
    ),
    "no model of a specification": Fault(
        "sft of-train --init m.toml --run-dir new",
        text("m.toml", "architecture = 'nosuch'\n"),
        needs=("of-train",),
        by_hand=new("sft of-train --set lora.target_modules=nosuch --run-dir new2"),
        then=78,
    ),
    "demonstrations that earned too little": Fault(
        "sft b --set sft.minimum_reward=0.5",
        needs=("b",),
        fill={"scripted --split": "scripted --limit 2 --sandboxes 1 --split", "DIR": "d"},
        extra="--set lora.target_modules=nosuch",
        then=78,
    ),
    "a learning rate that is planned": Fault(
        "train --resume training --iterations 3",
        lambda: scheduled(),
        needs=("training",),
        elsewhere=("or a new",),
    ),
    "fewer iterations than are finished": Fault(
        "train --resume training --iterations 0", needs=("training",), elsewhere=("--iterations",)
    ),
    "several replicas in lockstep": Fault(
        "eval embedded --limit 1 --engine-replicas 2 --max-gen-tokens 2 --max-steps 1", needs=()
    ),
    "a fresh sandbox for several sessions": Fault(
        "eval scripted --environment code --limit 1 --sessions-per-sandbox 2 "
        "--set environment.options.fresh_sandboxes=true",
        needs=(),
    ),
    "an adapter of another kind": Fault(
        "train --model ad --engine transformers --iterations 1",
        other_kind,
        needs=NEEDS,
        again="train --model trained/base --engine scripted --iterations 1",
        fill={"MODEL": "trained/base"},
        then=78,
    ),
    "an adapter without weights": Fault(
        "export ad --to peft --out new",
        lambda: (adapter(), Path("ad/adapter_model.safetensors").rename("kept.safetensors")),
        needs=NEEDS,
        by_hand=lambda: shutil.copy("kept.safetensors", "ad/adapter_model.safetensors") and None,
    ),
    "an evaluation without a report": Fault(
        f"push {W} --to merged --repo-prefix someone --dry-run --eval a",
        lambda: Path("a/report.json").unlink(),
        needs=(*NEEDS, "a"),
        fill={"DIR": "d --limit 1 --max-gen-tokens 2 --max-steps 1"},
        again=f"push {W} --to merged --repo-prefix someone --dry-run --eval d",
    ),
    "an evaluation that is none": Fault(
        f"push {W} --to merged --repo-prefix someone --dry-run --eval a",
        document("a/manifest.json", inputs=None),
        needs=(*NEEDS, "a"),
        fill={"DIR": "d --limit 1 --max-gen-tokens 2 --max-steps 1"},
        again=f"push {W} --to merged --repo-prefix someone --dry-run --eval d",
    ),
    "an evaluation of another policy": Fault(
        f"push {W} --to merged --repo-prefix someone --dry-run --eval a",
        needs=(*NEEDS, "a"),
        fill={"DIR": "d --limit 1 --max-gen-tokens 2 --max-steps 1"},
        again=f"push {W} --to merged --repo-prefix someone --dry-run --eval d",
    ),
    "a pointer to no step": Fault(
        "export tree --to merged --out new",
        lambda: tree(),
        needs=NEEDS,
        then=(0, 65, 78),
    ),
    "an engine that sleeps beside rollouts": Fault(
        "train --model embedded --iterations 1 --sleep --max-staleness 1",
        needs=(),
        extra="--set lora.target_modules=nosuch",
        then=78,
    ),
    "memory of one GPU": Fault(
        "doctor --model trained/base --assume-gpus 1x1",
        lambda: document(f"{BASE}/config.json", hidden_size=8192, intermediate_size=16384, num_hidden_layers=64)(),
        needs=NEEDS,
        check="placement",
        fill={"embedded": "embedded --iterations 1 --dry-run --group-size 2 --target-groups-per-iter 1 --limit 1"},
        again="doctor --model embedded",
        then=(0, 1),
    ),
    "a model of an unknown size": Fault(
        "doctor --model no/such --assume-gpus 1x80",
        check="placement",
        by_hand=new("doctor --model embedded"),
        then=(0, 1),
    ),
}


def scheduled() -> None:
    file = Path("training/settings.json")
    settings = json.loads(file.read_text())
    settings["train"]["schedule"] = "cosine"
    file.write_text(json.dumps(settings))
