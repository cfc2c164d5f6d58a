"""Mistakes in settings, from the command line, files and variables."""

from __future__ import annotations

import os
from pathlib import Path

from remedies.faults import Fault, new, text

SETTINGS = {
    "misspelt on the command line": Fault("config show --set train.group_sise=3", fill={"VALUE": "3"}),
    "unknown on the command line": Fault("config show --set nosuch.x=1"),
    "no value": Fault("config show --set train"),
    "wrong type": Fault("config show --set train.group_size=abc"),
    "wrong choice": Fault("config show --set train.off_policy=off"),
    "out of bounds": Fault("eval scripted --sandboxes 0 --limit 1"),
    "wrong processes": Fault("doctor --learner-threads x"),
    "misspelt in a file": Fault(
        "config show", text("finqa.toml", "[train]\ngroup_sise = 3\n"), by_hand=text("finqa.toml", "")
    ),
    "a dot in a name": Fault(
        "config show",
        text("finqa.toml", '"train.group_size" = 3\n'),
        by_hand=text("finqa.toml", "[train]\ngroup_size = 3\n"),
    ),
    "wrong in a file": Fault(
        "config show", text("finqa.toml", "[train]\ngroup_size = 'x'\n"), by_hand=text("finqa.toml", "")
    ),
    "no table": Fault("config show", text("finqa.toml", "train = 3\n"), by_hand=text("finqa.toml", "")),
    "no table of options": Fault(
        "config show", text("finqa.toml", "[engine]\noptions = 3\n"), by_hand=text("finqa.toml", "")
    ),
    "no TOML": Fault("config show", text("finqa.toml", "a = [\n"), by_hand=text("finqa.toml", "")),
    "no text": Fault(
        "config show --config latin.toml",
        lambda: Path("latin.toml").write_bytes(b"# \xe4\n"),
        by_hand=lambda: Path("latin.toml").write_text("# ä\n", encoding="utf-8"),
    ),
    "no file": Fault("config show --config nosuch"),
    "unknown variable": Fault("config show", env={"FINQA_TRAIN__NOSUCH": "3"}),
    "wrong variable": Fault("config show", env={"FINQA_TRAIN__GROUP_SIZE": "x"}),
    "two variables": Fault("config show", env={"LORA_RANK": "8", "FINQA_LORA__RANK": "8"}),
    "in .env": Fault("config show", text(".env", "FINQA_TRAIN__NOSUCH=3\n"), by_hand=text(".env", "")),
    "an address in .env": Fault(
        "config show", text(".env", "DAYTONA_API_URL=http://127.0.0.1:9\n"), by_hand=text(".env", "")
    ),
    "log level": Fault("eval scripted --limit 1 --quiet", env={"FINQA_LOG_LEVEL": "loud"}),
    "log format": Fault("eval scripted --limit 1 --quiet", env={"FINQA_LOG_FORMAT": "prose"}),
    "set twice": Fault(
        "config show --set engine=scripted --set engine.name=random", by_hand=new("config show --set engine=scripted")
    ),
    "a table set beside its key": Fault(
        "config show --set engine.options={} --set engine.options.x=1", by_hand=new("config show")
    ),
    "published keys that are set otherwise": Fault(
        "config show --config pub.yaml",
        text("pub.yaml", "training:\n  epochs: 3\n  warmup_steps: 5\n"),
        by_hand=text("pub.yaml", "training:\n  epochs: 3\n"),
    ),
    "a pipe as settings": Fault(
        "config show --config p.toml", lambda: os.mkfifo("p.toml"), by_hand=new("config show --config embedded")
    ),
    "settings that do not go together": Fault(
        "config show --set train.overlong_buffer=100", by_hand=new("config show")
    ),
    "two files of a tier": Fault(
        "config show --config qwen3-4b --config llama-3-8b", by_hand=new("config show --config qwen3-4b")
    ),
    "very many sandboxes": Fault("eval scripted --limit 1 --sandboxes 20000", fill={"--sandboxes": "2"}),
    "no text in .env": Fault(
        "config show", lambda: Path(".env").write_bytes(b"A=\xe4\n"), by_hand=text(".env", "A=b\n")
    ),
    "the value of a key": Fault(
        "config show --set engine.options.api_key_env=sk-abc123",
        by_hand=new("config show --set engine.options.api_key_env=SERVER_KEY"),
    ),
    "a secret on the command line": Fault(
        "config show --set engine.options.api_key=sk-abcdefghijklmnopqrstuvwxyz123456",
        by_hand=new("config show"),
        env={"OPENAI_API_KEY": "x"},
    ),
    "a specification of a model": Fault(
        "config show --config m.toml",
        text("m.toml", "architecture = 'llama'\n"),
        {"DEMONSTRATIONS": "nothere"},
        by_hand=new("config show --config embedded"),
        instead=True,
        then=(0, 65),
    ),
    "an experiment as settings": Fault("config show --config financial_qa_tiny", instead=True),
    "no tier": Fault(
        "config show --config t.toml", text("t.toml", "tier = 'x'\n"), by_hand=text("t.toml", "tier = 'model'\n")
    ),
    "a setting of another tier": Fault(
        "config show --config t.toml",
        text("t.toml", "tier = 'model'\n[train]\ngroup_size = 2\n"),
        by_hand=text("t.toml", "[train]\ngroup_size = 2\n"),
    ),
    "a folder as settings": Fault("config show --config a", by_hand=new("config show --config embedded")),
    "no such settings file": Fault("config show --config nothere.toml"),
}
