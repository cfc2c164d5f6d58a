"""The flags of `finqa train`, and what is said when only the base dependencies are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.settings.layers import canonical
from finqa_cli.settings.schema import DECLARATIONS

pytestmark = pytest.mark.usefixtures("empty_folder")

ROOT = Path(__file__).parents[2]

PUBLISHED = re.findall(
    r"--[a-z-]+",
    """
--sandboxes --iterations --group-size --target-groups-per-iter --max-rollout-rounds --model --snapshot --lr
--temperature --max-steps --max-gen-tokens --rollout-dispatch-wait-ms --tensor-parallel-size
--gpu-memory-utilization --lora-rank --lora-alpha --lora-dropout --lora-target-modules --sync-every
--grpo-update-batch-size --disable-gradient-checkpointing --run-dir --save-token-ids
""",
)


def flags_of(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main([command, "--help-all"]) == 0
    return set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))


def test_train_takes_every_flag_of_the_published_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PUBLISHED) <= flags_of("train", capsys)


@pytest.mark.parametrize("command", ["play", "train", "eval", "sft"])
def test_commands_that_run_share_the_general_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"--json", "--quiet", "--config", "--set", "--seed"} <= flags_of(command, capsys)


def test_flags_of_asynchronous_training_and_of_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"--max-staleness", "--off-policy", "--engine-replicas"} <= flags_of("train", capsys)
    assert "--engine-replicas" in flags_of("eval", capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-staleness", "-1"], "train.max_staleness = -1 (flag)"),
        (
            ["--off-policy", "trust"],
            "train.off_policy = 'trust' (flag): Input should be 'auto', 'none', 'token', 'sequence',",
        ),
        (["--engine-replicas", "0"], "generation.engine_replicas = 0 (flag)"),
        (["--engine", "scripted", "--engine-replicas", "2"], "only token engines can have replicas."),
    ],
)
def test_wrong_values_of_these_flags_are_named(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--model=embedded", "--sandbox=local", *arguments]) == 78
    assert told in capsys.readouterr().err


def test_every_flag_names_a_setting() -> None:
    assert [path for path in DECLARATIONS if canonical(path, "test") != path] == []


WITHOUT = """
import sys
for name in {names!r}:
    sys.modules[name] = None
from finqa_cli.app import main
sys.exit(main({arguments!r}))
"""
HEAVY = ["torch", "transformers", "peft", "safetensors", "tokenizers", "openenv", "fastmcp", "fastapi", "uvicorn"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["plugins"], 0),
        (["config", "show", "--origin"], 0),
        (["snapshot", "build"], 0),
        (["sandbox", "ls", "--sandbox", "local"], 0),
        (["eval", "scripted"], 78),
        (["play", "--engine", "transformers"], 78),
        (["train"], 78),
        (["eval", "embedded"], 78),
        (["model", "inspect", "embedded"], 78),
    ],
)
def test_with_the_base_dependencies_alone_commands_work_or_say_what_to_install(
    arguments: list[str], status: int, tmp_path: Path
) -> None:
    code = WITHOUT.format(names=HEAVY, arguments=arguments)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=90
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if status:
        assert re.search(r"fix: pip install (--upgrade )?'finqa\[(train|openenv)\]'", done.stderr), done.stderr
