"""`finqa pipeline`: the whole cycle of a training method, step by step."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.algorithms.pairing import Rule
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.evaluation.compare.comparison_report import accuracy_lines
from finqa_cli.experiments import pipeline_run as workflow
from finqa_cli.experiments.pipeline_spec import (
    METHODS,
    Candidates,
    Demonstrations,
    Method,
    PipelineSpec,
    check_spec,
    find_data,
    find_final_test,
    with_defaults,
)
from finqa_cli.experiments.step_runner import return_to
from finqa_cli.experiments.step_settings import check_recorded, check_secrets
from finqa_cli.extend import registry
from finqa_cli.settings import Choice, Settings, is_embedded
from finqa_cli.settings.settings_files import file_layers
from finqa_cli.training.rl.rl_run import check_idle_options
from finqa_cli.wiring.command_settings import with_grader_of_data

app = CommandApp()

OUTPUTS = Path("outputs")
FREE_ON_RESUME = ("redo", "until", "past_gates", "dry_run")
STEPS = "Steps"

QUICK_IMITATION = {"sft.epochs": 1.0, "sft.validate_every": 4, "sft.validation_samples": 8, "pool.sandboxes": 16}
QUICK_TRAINING = {
    "train.iterations": 4,
    "train.group_size": 4,
    "train.target_groups_per_iter": 6,
    "train.max_rollout_rounds": 2,
    "eval.limit": 48,
    "pool.sandboxes": 32,
}
PREFERENCES = {"optimizer.options.validation_samples": 16}
"""Settings of dpo in a pipeline: it has an environment for validation samples, which `finqa dpo` alone may not have."""

QUICK_PREFERENCES = {
    "optimizer.options.epochs": 4.0,
    "optimizer.options.pairs_per_step": 4,
    "optimizer.options.validation_samples": 8,
}
QUICK = {"demonstration_questions": 96, "num_candidates": 8, "candidate_questions": 24}
"""Counts of --quick-test, unless they are given."""

OF_EMBEDDED = {"sft.validate_every": 20}
FROM_NOTHING = {**OF_EMBEDDED, "sft.learning_rate": 2e-3, "sft.warmup_share": 0.05, "sft.batch_tokens": 4096}
PREFERENCES_OF_EMBEDDED = {"optimizer.options.epochs": 3.0, "optimizer.options.pairs_per_step": 12}
"""Settings for a policy of a million weights, in addition to its profile (`settings/profiles`), which `finqa sft` uses
too. The defaults of the settings are for adapters of large models."""

CARELESS = {"unquoted_years": 0.85, "undivided_percentages": 0.5}
"""Shares of episodes with a mistake of the expert that the embedded policy imitates: most of them are wrong."""
CARELESS_SHARE = 0.5
"""Share of gold solutions that are demonstrated with a mistake, in environments with the option `careless`."""


def _step(flag: str, help: str, default: str | bool = True) -> Any:
    """Return an option of one of the steps."""
    return typer.Option(flag, help=help, rich_help_panel=STEPS, show_default=default)


Init = Annotated[Path | None, _step("--init", "TOML file that specifies a new model for step 03.")]
Careless = Annotated[
    bool | None,
    _step(
        "--careless/--careful", "Imitate an expert that makes mistakes.", "careless with `embedded` and `embedded-text`"
    ),
]
DemonstrationQuestions = Annotated[int, _step("--demonstration-questions", "Demonstrations of step 01; 0: all.")]
NumCandidates = Annotated[int, _step("--num-candidates", "Candidates per question in step 04.")]
CandidateQuestions = Annotated[int, _step("--candidate-questions", "Questions of step 04; 0: all.")]
CandidateTemperature = Annotated[
    float | None,
    _step("--candidate-temperature", "Sampling temperature of step 04.", "0.8; 1 with the embedded policy"),
]
CandidateTopP = Annotated[
    float | None, _step("--candidate-top-p", "Nucleus sampling mass of step 04.", "0.9; 1 with the embedded policy")
]
PairRule = Annotated[
    Rule | None, _step("--pair-rule", "Pairs of step 08, for dpo; see finqa prefs --rule.", "best-worst")
]
FinalTest = Annotated[
    Path | None,
    _step(
        "--final-test",
        "File of a test split, such as the published test.json: both policies are evaluated and compared on it at "
        "the end, and its overlap with the training data is reported.",
        "none",
    ),
]
CompareWith = Annotated[
    list[Path] | None,
    _step("--compare-with", "Another pipeline or evaluated run to compare with in step 11; repeatable."),
]


@app.command(epilog=f"Example: finqa pipeline --method grpo --quick-test. {EXIT_CODES}")
@offers(
    *("environment.name", "engine", "sandbox.name", "reward", "environment.options.grader"),
    *("environment.options.hints", "model.name", "data.snapshot", "data.path", "pool.sandboxes", "train.iterations"),
    *("train.group_size", "train.target_groups_per_iter", "train.learning_rate", "eval.limit"),
    "generation.max_gen_tokens",
    *("data.allow_evaluation_only", "data.allow_overlap", "trackers", "run.project", "train.seed"),
)
def main(
    line: CommandLine,
    method: Annotated[Method | None, typer.Option("--method", help="Training method after imitation.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Output folder. If it already contains this pipeline, the pipeline is resumed.",
            show_default="outputs/run_NNN, the next free",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Folder of a pipeline to resume, with its own settings.")
    ] = None,
    redo: Annotated[
        str,
        typer.Option(
            "--from", metavar="STEP", help="First step to run again; old results of it and later steps are moved aside."
        ),
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="STEP", help="Last step.")] = "",
    past_gates: Annotated[
        bool,
        typer.Option(
            "--past-gates",
            help="Continue even if too few answers of step 03 (90 %) or 04 (70 %) have the right form.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command of every step, and run nothing.")
    ] = False,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="Small counts in all steps, as a quick test.")
    ] = False,
    init: Init = None,
    careless: Careless = None,
    demonstration_questions: DemonstrationQuestions = 0,
    num_candidates: NumCandidates = 4,
    candidate_questions: CandidateQuestions = 0,
    candidate_temperature: CandidateTemperature = None,
    candidate_top_p: CandidateTopP = None,
    pair_rule: PairRule = None,
    final_test: FinalTest = None,
    compare_with: CompareWith = None,
) -> None:
    """Run the whole cycle: check and prepare data, imitate, sample, train by a method, evaluate both policies, compare.

    Every step is a finqa command of its own with a folder and a manifest below the output folder; its command line is
    shown, and can be run alone. What is done is not done again: after a failure or a stop, --resume continues. It stops
    where fewer than 90 % of the answers after imitation (03), or 70 % of the candidates (04), have the right form.

    With no model named and no GPU, a small policy of the environment imitates a careless expert (03), and the method
    improves it.
    """
    spec, run = _wanted(line)
    if dry_run:
        shown = workflow.preview(spec, run, redo=redo, until=until)
        emit(workflow.document(shown), as_json=line.as_json, text="\n".join(step.command for step in shown.steps))
        return
    result = workflow.run_pipeline(
        spec,
        run,
        redo=redo,
        until=until,
        past_gates=past_gates,
        show=lambda text: None if line.as_json or line.quiet else print(text, file=sys.stderr, flush=True),
    )
    emit(workflow.document(result), as_json=line.as_json, text=lambda: _text(result))


def _wanted(line: CommandLine) -> tuple[PipelineSpec, Path]:
    """Return the specification of the pipeline and its folder."""
    given = line.context.params
    if (resume := given["resume"]) is not None:
        line.check_free(resume, command="pipeline", free=FREE_ON_RESUME)
        logs.configure()
        run = return_to(resume, line.note)
        return workflow.stored_spec(run), run
    if given["method"] is None:
        raise UsageError(
            "No training method is named.", remedy=f"finqa pipeline --method {METHODS[0]}; or {', '.join(METHODS[1:])}"
        )
    spec = _spec(line, given["method"])
    if given["output"] is not None:
        check_recorded(given["output"], spec.document(), workflow.PIPELINE)
        return spec, given["output"]
    unnamed = OUTPUTS / "run_NNN"
    workflow.chosen_steps(
        spec, unnamed, redo=given["redo"], until=given["until"]
    )  # an unknown step is an error before a folder is created
    return spec, unnamed if given["dry_run"] else workflow.new_output(OUTPUTS)


def _text(result: workflow.PipelineResult) -> str:
    rows = [(step.name, step.state, _time(step.seconds)) for step in result.steps]
    done = all(step.state == "done" for step in result.steps)
    reports = (("Report", result.report), ("Final test", result.final_report))
    ends = [line for name, path in reports if path for line in (*accuracy_lines(path.parent), f"{name}: {path}")]
    ends += [] if done else [f"Next: finqa pipeline --resume {result.run}"]
    return "\n".join([plain_table(("step", "state", "time"), rows), "", *ends])


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"


def _spec(line: CommandLine, method: Method) -> PipelineSpec:
    """Return the specification of the pipeline that follows from the command line and the settings."""
    given = line.context.params
    if given["pair_rule"] is not None and method != "dpo":
        raise UsageError(
            f"{method} does not train on pairs, so --pair-rule would have no effect.", remedy="--method dpo"
        )
    for name, _, value in (each.partition("=") for each in line.assignments):
        if name.strip() in ("optimizer", "optimizer.name"):
            raise UsageError(
                f"--set {name.strip()} has no effect here.",
                remedy=f"--method {value.strip()} instead of --set {name.strip()}",
            )
    of_imitation, of_training = _files(line.files, method)
    imitation = with_grader_of_data(line.load({"optimizer.name": "sft"}, files=of_imitation, quiet=True))
    training = with_grader_of_data(line.load({"optimizer.name": method}, files=of_training))
    if (folder := training.settings.run.dir) is not None and training.origins["run.dir"].startswith("file"):
        line.note(f"warning: run.dir = {folder} ({training.origins['run.dir']}) has no effect here: --output names it")
    elif folder is not None:
        raise UsageError(
            "run.dir has no effect here.",
            remedy=f"--output {shlex.quote(str(folder))} instead of --set run.dir",
        )
    line.warn_of_project(training.settings)
    for loaded in (imitation, training):
        check_secrets(loaded)
    check_idle_options(training)
    if not given["init"]:
        _check_policy(training.settings)
    quick, embedded = given["quick_test"], is_embedded(training.settings.model.name)
    temperature, top_p = (1.0, 1.0) if embedded else (0.8, 0.9)
    counts = {name: QUICK[name] if quick and name not in line.typed else given[name] for name in QUICK}
    pace = PREFERENCES | (PREFERENCES_OF_EMBEDDED if embedded else {}) | (QUICK_PREFERENCES if quick else {})
    learnt = {**(pace if method == "dpo" else {}), **(QUICK_TRAINING if quick else {})}
    small = FROM_NOTHING if given["init"] else OF_EMBEDDED if embedded else {}
    data = find_data(training.settings, named=training.origins["data.snapshot"] != "default")
    tools = data.kind in ("embedded", "folder", "snapshot")  # elsewhere the expert knows the gold solutions
    careless = tools and (embedded if given["careless"] is None else given["careless"])
    taught = with_defaults(imitation, {**small, **(QUICK_IMITATION if quick else {})})
    if not tools and given["careless"] is not None:
        taught = _with_mistakes(taught, CARELESS_SHARE if given["careless"] else 0.0)
    spec = PipelineSpec(
        method=method,
        imitation=taught.model_copy(update={"optimizer": Choice(name="sft")}),  # options belong to the method
        training=with_defaults(training, learnt),
        data=data,
        init=str(given["init"] or ""),
        demonstrations=Demonstrations(
            limit=counts["demonstration_questions"], **(CARELESS if careless else dict.fromkeys(CARELESS, 0.0))
        ),
        candidates=Candidates(
            each=counts["num_candidates"],
            temperature=temperature if given["candidate_temperature"] is None else given["candidate_temperature"],
            top_p=top_p if given["candidate_top_p"] is None else given["candidate_top_p"],
            limit=counts["candidate_questions"],
        ),
        pair_rule=given["pair_rule"] or "best-worst",
        compare_with=tuple(map(str, given["compare_with"] or ())),
        final_test=find_final_test(training.settings, given["final_test"]) if given["final_test"] else None,
        plots=importlib.util.find_spec("matplotlib") is not None,
    )
    check_spec(spec)
    return spec


def _with_mistakes(settings: Settings, share: float) -> Settings:
    """Return settings whose environment demonstrates this share of its gold solutions with a mistake.

    Raises:
        UsageError: The environment demonstrates no mistakes.
    """
    choice = settings.environment
    options = registry().config_class(registry().find("environment", choice.name))
    if options is None or "careless" not in options.model_fields:
        raise UsageError(
            f"The environment {choice.name} demonstrates gold solutions without mistakes.",
            remedy="leave out --careless and --careful",
        )
    changed = choice.model_copy(update={"options": {**choice.options, "careless": share}})
    return settings.model_copy(update={"environment": changed})


def _check_policy(settings: Settings) -> None:
    """Raise a UsageError if the model is a small policy for other tasks: it cannot learn another form of answers."""
    environment, model = registry().find("environment", settings.environment.name), settings.model.name
    if not is_embedded(model):
        return
    spoken = {part.policy: part.name for part in registry().components("environment") if part.policy}
    wanted = spoken.get(model, "finqa")
    other = "--model with an instruction-tuned model; or --init with a new model's specification"
    if environment.name != wanted:
        raise UsageError(
            f"{model} is a small policy that speaks to the environment {wanted} alone; {environment.name} asks for "
            "another form, which it does not learn.",
            remedy=f"--environment {wanted}; or --model with what `finqa policy make --environment "
            f"{shlex.quote(environment.name)}` makes; or {other}",
        )
    if environment.snapshotless and settings.data.path is not None:
        raise UsageError(
            f"{model} is a small policy for the embedded tasks of {wanted} only; it cannot learn "
            f"those of {settings.data.path}.",
            remedy=f"leave out --data; or {other}",
        )


def _files(references: Sequence[str], method: Method) -> tuple[list[str], list[str]]:
    """Return the settings files of imitation and those of training.

    A file without an optimizer is for both. One that names `sft` is for imitation, one that names the method for
    training.

    Raises:
        ConfigError: A file names another optimizer.
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
