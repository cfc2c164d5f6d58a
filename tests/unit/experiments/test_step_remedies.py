"""The remedy of a step, in the words of the pipeline or experiment that runs it."""

from __future__ import annotations

import pytest

from finqa_cli.experiments.pipeline_run import PIPELINE
from finqa_cli.experiments.step_runner import own_command, with_settings


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("split it, or --allow-overlap", "split it, or --set data.allow_overlap=true"),
        ("split it (finqa data prepare a --for b --split-by cluster --out c) and --data c",
         "split it (finqa data prepare a --for b --split-by cluster --out c) and --set data.path=c"),
        ("finqa eval scripted --split train --run-dir DIR, then more", None),
        ("--max-gen-tokens 200; `finqa sft --epochs 3` takes longer",
         "--set generation.max_gen_tokens=200; `finqa sft --epochs 3` takes longer"),
        ("--data with a file of rows", "--set data.path=PATH with a file of rows"),
        ("--disable-gradient-checkpointing", "--set train.gradient_checkpointing=false"),
        ("--set sft.epochs=3, or --no-such-flag", None),
        ("wait", None),
    ],
)  # fmt: skip
def test_flags_of_a_step_become_settings(remedy: str, expected: str | None) -> None:
    assert with_settings(remedy) == (remedy if expected is None else expected)


def test_a_step_that_the_pipeline_runs_is_changed_by_the_flags_of_the_pipeline() -> None:
    remedy = "finqa sample TARGET --num-candidates 16 --temperature 1.0, a smaller --margin, or --rule all"
    assert own_command(remedy, "prefs", PIPELINE) == (
        "the same command with --num-candidates 16 --candidate-temperature 1.0, or with --pair-rule all, "
        "and a new --output"
    )
    for other in ("finqa sample TARGET", "finqa data prepare a --out b", "--rule", "wait"):
        assert own_command(other, "prefs", PIPELINE) == ""
    assert own_command("--rule all", "sft", PIPELINE) == ""
