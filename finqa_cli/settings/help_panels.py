"""Headings of the flags in the help, and the options of components that have a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from finqa_cli.settings.declarations import option

COMPONENTS, SANDBOXES, DATA, MODEL = "Components", "Sandboxes", "Data and evaluation", "Model"
GENERATION, TRAINING, METHOD, RUN = "Generation", "Training", "Method", "Run"

PANELS: Mapping[str, str] = {
    **dict.fromkeys(
        ("environment", "engine", "sandbox", "optimizer", "reward", "grader", "learner", "codec"), COMPONENTS
    ),
    "optimizer.options": METHOD,
    "trackers": RUN,
    "pool": SANDBOXES,
    "data": DATA,
    "model": MODEL,
    "lora": MODEL,
    "generation": GENERATION,
    "train": TRAINING,
    "eval": DATA,
    "sft": METHOD,
    "cluster": RUN,
    "run": RUN,
}
"""Section, or `SECTION.options` -> heading of its flags in the help."""

OPTION_FLAGS = {
    "environment.options.hints": option(
        bool, "Explanations of common mistakes in error messages of the tools; changes the task", "--hints"
    ),
    "environment.options.grader": option(
        str,
        "Grading rules: openenv, strict (strict-3), strict-1, strict-3 or judge",
        "--grader",
        variable="FINQA_GRADER",
        shown="strict; openenv for Snorkel's published data",
    ),
    "environment.options.dataset_limit": option(
        int, "Limit of problems per split; 0: all (mbpp)", "--dataset-limit", shown="0", panel=DATA
    ),
    "environment.options.max_attempts": option(
        int, "Attempts per problem (mbpp)", "--max-attempts", shown="3", panel=DATA
    ),
    "sandbox.options.dangerously_run_unisolated": option(
        bool,
        "The policy's code runs without isolation: it can read, send and delete your files",
        "--dangerously-run-unisolated",
        panel=SANDBOXES,
    ),
    "optimizer.options.loss_type": option(
        Literal["sigmoid", "hinge", "ipo"], "Form of the loss", "--loss-type", shown="sigmoid", main=True
    ),
    "optimizer.options.beta": option(float, "Pull towards the reference", "--beta", shown="0.1", main=True),
    "optimizer.options.label_smoothing": option(
        float, "Share of preferences that may be wrong; sigmoid only", "--label-smoothing", shown="0"
    ),
    "optimizer.options.reference_free": option(bool, "Loss without the reference policy", "--reference-free"),
    "optimizer.options.epochs": option(float, "Passes over the pairs", "--epochs", shown="1", main=True),
    "optimizer.options.pairs_per_step": option(
        int, "Pairs of one optimizer step", "--pairs-per-step", shown="16", main=True
    ),
    "optimizer.options.validate_every": option(
        int, "Steps between validations on held-out pairs, each with a checkpoint", "--validate-every", shown="50"
    ),
    "optimizer.options.validation_samples": option(
        int, "Held-out questions that the policy answers at each validation; 0: none", "--validation-samples", shown="0"
    ),
}
"""Options of components that have a flag. The component's class has the default and checks the value."""
