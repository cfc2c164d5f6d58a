"""What `finqa doctor`, `model inspect`, `setup`, `plugins` and `snapshot` say about this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from remedies.faults import Fault, new, text
from remedies.rows.data import embedded_snapshot

BASE = "trained/base"
NEEDS = ("trained",)
LEARN = "sft of-train --validation-samples 0 --epochs 0.5"


def taken(name: str, content: str) -> Fault:
    """A model folder with a wrong config.json, which the user copies again."""
    return Fault(
        f"model inspect {BASE}",
        lambda: (shutil.copy(f"{BASE}/config.json", "kept"), Path(BASE, name).write_text(content)),
        needs=NEEDS,
        by_hand=lambda: shutil.copy("kept", f"{BASE}/config.json") and None,
    )


MACHINES = {
    "no data of an environment": Fault(
        "doctor --environment finqa-text --data nothere.json --engine scripted",
        check="data",
        by_hand=new("doctor --environment finqa-text --engine scripted"),
    ),
    "no GPU": Fault("doctor --model trained/base --engine transformers", check="gpu", needs=NEEDS, then=(0, 1)),
    "a file of settings that is there": Fault(
        f"model inspect {BASE} --out taken.toml",
        text("taken.toml", ""),
        needs=NEEDS,
        by_hand=new(f"model inspect {BASE} --out other.toml"),
    ),
    "a file of settings that cannot be": Fault(
        f"model inspect {BASE} --out nothere/x.toml", needs=NEEDS, by_hand=new(f"model inspect {BASE} --out other.toml")
    ),
    "a model without config.json": Fault(
        "model inspect empty", lambda: Path("empty").mkdir(), needs=NEEDS, by_hand=new(f"model inspect {BASE}")
    ),
    "a config.json that is no JSON": taken("config.json", "{"),
    "a config.json of no model": taken("config.json", "{}"),
    "a config.json of no layers": taken("config.json", '{"model_type": "qwen3", "num_hidden_layers": 0}'),
    "no causal model": Fault(
        f"model inspect {BASE}",
        text(f"{BASE}/config.json", '{"model_type": "nosuch"}'),
        needs=NEEDS,
        by_hand=new("model inspect embedded"),
    ),
    "no hub id to inspect": Fault("model inspect no/such", by_hand=new("model inspect embedded"), elsewhere=("unset",)),
    "requirements that are no file": Fault(
        "setup vllm --requirements nothere.txt --python nosuch",
        fill={"FILE": "r.txt"},
        write=text("r.txt", ""),
        then=78,
    ),
    "another Python of an environment": Fault(
        "setup vllm --python ./python",
        lambda: (text("python", "#!/bin/sh\necho 3.1\n")(), Path("python").chmod(0o755)),
        fill={"PATH": "nosuch"},
        then=78,
    ),
    "no Python of an environment": Fault("setup vllm --python nosuch", fill={"PATH": "nosuch2"}, then=78),
    "an engine that takes no options": Fault(
        "play --engine human --set engine.options.x=1 --quiet", by_hand=new("play --engine scripted --quiet")
    ),
    "a kind without a suite": Fault("plugins check jsonl", by_hand=new("plugins check graded")),
    "a provider without images": Fault(
        "snapshot delete openenv-finqa --sandbox local", home=True, by_hand=new("snapshot list"), elsewhere=("leave",)
    ),
    "an incomplete model": Fault(
        "eval m --limit 1",
        lambda: (Path("m").mkdir(), shutil.copy(f"{BASE}/config.json", "m")),
        needs=NEEDS,
        by_hand=new("eval scripted --limit 1"),
    ),
    "a snapshot that cannot be read": Fault("snapshot show openenv-finqa", lambda: spoil("current", "x"), home=True),
    "a manifest of another format": Fault(
        "snapshot show openenv-finqa", lambda: spoil("manifest.json", '{"schema_version": 99}'), home=True
    ),
    "a manifest that is none": Fault("snapshot show openenv-finqa", lambda: spoil("manifest.json", "{"), home=True),
    "a question of a damaged snapshot": Fault("data show x", lambda: spoil("tasks.jsonl", "{"), home=True, then=65),
}


def spoil(name: str, content: str) -> None:
    """Damage a file of the embedded snapshot."""
    store = embedded_snapshot()
    path = store.path if name != "current" else store.path.parent
    (path / name).write_text(content)
