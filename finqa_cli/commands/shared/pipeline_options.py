"""The options of `finqa pipeline` and what they ask for together with the settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.run_arguments import check_project
from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.experiments.pipeline_checks import check_spec
from finqa_cli.experiments.pipeline_data import find_data
from finqa_cli.experiments.pipeline_spec import (
    Candidates,
    Demonstrations,
    Method,
    PipelineSpec,
    check_secrets,
    with_defaults,
)
from finqa_cli.settings import Choice, Loaded, is_embedded
from finqa_cli.settings.tiers import file_layers
from finqa_cli.training.rl.rl_run import check_idle_options

STEPS = "Steps"


def _option(
    names: str, text: str, default: str | bool = False, *, panel: str = STEPS, metavar: str | None = None
) -> Any:
    return typer.Option(names, help=text, rich_help_panel=panel, show_default=default, metavar=metavar)


Trained = Annotated[Method | None, _option("--method", "What trains the policy that imitation made.")]
Output = Annotated[
    Path | None,
    _option(
        "--output",
        "Folder; one that holds this pipeline already is gone on with.",
        "outputs/run_NNN, the next free",
    ),
]
Resume = Annotated[Path | None, _option("--resume", "Go on with the pipeline in this folder, with its own settings.")]
Redo = Annotated[
    str, _option("--from", "Do this step and all later ones again; what they had is set aside.", metavar="STEP")
]
Until = Annotated[str, _option("--until", "Stop after this step.", metavar="STEP")]
DryRun = Annotated[bool, _option("--dry-run", "Print the command of every step and do nothing.")]
QuickTest = Annotated[bool, _option("--quick-test", "Small counts throughout, to see that everything works.")]
Init = Annotated[Path | None, _option("--init", "Make the model of step 03 from nothing, as this TOML file specifies.")]
Careless = Annotated[
    bool | None,
    _option(
        "--careless/--careful",
        "The expert that is imitated makes mistakes, so that there is something left to learn.",
        "careless with the embedded policy and tools",
    ),
]
DemonstrationQuestions = Annotated[
    int | None, _option("--demonstration-questions", "Demonstrations of step 01; 0: of all questions.", "0")
]
NumCandidates = Annotated[int | None, _option("--num-candidates", "Per question, in step 04.", "4")]
CandidateQuestions = Annotated[int | None, _option("--candidate-questions", "Questions of step 04; 0: all.", "0")]
CandidateTemperature = Annotated[
    float | None, _option("--candidate-temperature", "Of step 04.", "0.8; 1 with the embedded policy")
]
CandidateTopP = Annotated[float | None, _option("--candidate-top-p", "Of step 04.", "0.9; 1 with the embedded policy")]
PairRule = Annotated[
    Rule | None,
    _option("--pair-rule", "Which candidates step 08 pairs, for dpo; see finqa prefs --rule.", "best-worst"),
]
CompareWith = Annotated[
    list[Path] | None, _option("--compare-with", "Another pipeline or evaluated run for step 11; repeatable.")
]
Data = Annotated[
    Path | None,
    _option(
        "--data",
        "A data folder; for finqa-text a question file, or a folder with train, dev and test.",
        "the embedded set",
        panel=options.ROLLOUT,
    ),
]

QUICK_IMITATION = {"sft.epochs": 1.0, "sft.validate_every": 4, "sft.validation_samples": 8, "pool.sandboxes": 16}
QUICK_TRAINING = {
    "train.iterations": 4,
    "train.group_size": 4,
    "train.target_groups_per_iter": 6,
    "train.max_rollout_rounds": 2,
    "eval.limit": 48,
    "pool.sandboxes": 32,
}
QUICK_PREFERENCES = {"optimizer.options.epochs": 4.0, "optimizer.options.pairs_per_step": 4}
QUICK = {"demonstration_questions": 96, "num_candidates": 8, "candidate_questions": 24}
"""What --quick-test asks for, unless it is given."""

OF_EMBEDDED = {"sft.learning_rate": 1e-3, "sft.warmup_share": 0.05, "sft.validate_every": 20}
FROM_NOTHING = {**OF_EMBEDDED, "sft.learning_rate": 2e-3, "sft.batch_tokens": 4096}
PREFERENCES_OF_EMBEDDED = {"optimizer.options.epochs": 3.0, "optimizer.options.pairs_per_step": 12}
"""What a policy of a million weights learns by; the defaults are for adapters of large models."""

CARELESS = {"unquoted_years": 0.85, "undivided_percentages": 0.5}
"""Habits of the expert whose demonstrations the embedded policy was made of: most are wrong, and some are right."""


def asked(ctx: typer.Context, method: Method) -> PipelineSpec:
    """What the command line asks for."""
    given = ctx.params
    if given["pair_rule"] is not None and method != "dpo":
        raise UsageError(f"{method} learns from no pairs, so --pair-rule would have no effect.", remedy="--method dpo")
    of_imitation, of_training = _files(given["config"] or (), method)
    imitation = _loaded(ctx, of_imitation, "sft", quiet=True)
    training = _loaded(ctx, of_training, method, quiet=False)
    if training.settings.run.dir is not None:
        raise UsageError("run.dir has no effect here.", remedy="--output")
    check_project(given["project"], training.settings)
    for loaded in (imitation, training):
        check_secrets(loaded)
    check_idle_options(training)
    quick, embedded = given["quick_test"], is_embedded(training.settings.model.name)
    counts: dict[str, Any] = {"demonstration_questions": 0, "num_candidates": 4, "candidate_questions": 0}
    nucleus = (1.0, 1.0) if embedded else (0.8, 0.9)
    counts |= {"candidate_temperature": nucleus[0], "candidate_top_p": nucleus[1], **(QUICK if quick else {})}
    counts |= {name: given[name] for name in counts if given[name] is not None}
    pace = {**(PREFERENCES_OF_EMBEDDED if embedded else {}), **(QUICK_PREFERENCES if quick else {})}
    learnt = {**(pace if method == "dpo" else {}), **(QUICK_TRAINING if quick else {})}
    small = FROM_NOTHING if given["init"] else OF_EMBEDDED if embedded else {}
    data = find_data(training.settings, named=training.origins["data.snapshot"] != "default")
    tools = data.kind in ("embedded", "folder", "snapshot")  # elsewhere the expert knows the gold solutions
    careless = embedded and tools if given["careless"] is None else given["careless"]
    taught = with_defaults(imitation, {**small, **(QUICK_IMITATION if quick else {})})
    spec = PipelineSpec(
        method=method,
        imitation=taught.model_copy(update={"optimizer": Choice(name="sft")}),  # options are of the method
        training=with_defaults(training, learnt),
        data=data,
        init=str(given["init"] or ""),
        demonstrations=Demonstrations(
            limit=counts["demonstration_questions"], **(CARELESS if careless else dict.fromkeys(CARELESS, 0.0))
        ),
        candidates=Candidates(
            each=counts["num_candidates"],
            temperature=counts["candidate_temperature"],
            top_p=counts["candidate_top_p"],
            limit=counts["candidate_questions"],
        ),
        pair_rule=given["pair_rule"] or "best-worst",
        compare_with=tuple(map(str, given["compare_with"] or ())),
        plots=importlib.util.find_spec("matplotlib") is not None,
    )
    check_spec(spec)
    return spec


def _files(references: Sequence[str], method: Method) -> tuple[list[str], list[str]]:
    """The settings files of imitation and of training: those that name the method `sft` are of imitation only.

    Raises:
        ConfigError: A file is of another method.
    """
    of_imitation, of_training = [], []
    for reference in references:
        named = file_layers([reference])[0].get("optimizer.name")
        if named is not None and named.raw not in (method, "sft"):
            raise ConfigError(
                f"{reference} is for {named.raw}, and the method is {method}.", remedy=f"--method {named.raw}"
            )
        if named is None or named.raw == "sft":
            of_imitation.append(reference)
        if named is None or named.raw == method:
            of_training.append(reference)
    return of_imitation, of_training


def _loaded(ctx: typer.Context, files: list[str], optimizer: str, *, quiet: bool) -> Loaded:
    """The settings of some steps, by their files and the flags of all.

    Raises:
        ConfigError: One is wrong, or names another optimizer.
    """
    ctx.params["config"] = files
    if any(assignment.partition("=")[0].strip() in ("optimizer", "optimizer.name") for assignment in _assigned(ctx)):
        raise UsageError("--set optimizer.name has no effect here.", remedy="--method")
    return options.load(ctx, {"optimizer.name": optimizer}, quiet=quiet)


def _assigned(ctx: typer.Context) -> list[str]:
    given: list[str] | None = ctx.params["assign"]
    return given or []
