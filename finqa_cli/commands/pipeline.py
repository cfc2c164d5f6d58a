"""`finqa pipeline`: the whole cycle of a training method, step by step."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from finqa_cli import logs
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared import pipeline_options as of_pipeline
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.commands.shared.resume import only_free
from finqa_cli.errors import UsageError
from finqa_cli.experiments import pipeline_run as workflow
from finqa_cli.experiments.pipeline_spec import METHODS, PipelineSpec
from finqa_cli.experiments.step_settings import check_recorded

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

OUTPUTS = Path("outputs")
FREE_ON_RESUME = ("resume", "redo", "until", "dry_run", "as_json", "quiet")


@app.command(epilog=f"Example: finqa pipeline --method grpo --quick-test. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    method: of_pipeline.Trained = None,
    output: of_pipeline.Output = None,
    resume: of_pipeline.Resume = None,
    redo: of_pipeline.Redo = "",
    until: of_pipeline.Until = "",
    dry_run: of_pipeline.DryRun = False,
    quick_test: of_pipeline.QuickTest = False,
    init: of_pipeline.Init = None,
    careless: of_pipeline.Careless = None,
    demonstration_questions: of_pipeline.DemonstrationQuestions = None,
    num_candidates: of_pipeline.NumCandidates = None,
    candidate_questions: of_pipeline.CandidateQuestions = None,
    candidate_temperature: of_pipeline.CandidateTemperature = None,
    candidate_top_p: of_pipeline.CandidateTopP = None,
    pair_rule: of_pipeline.PairRule = None,
    compare_with: of_pipeline.CompareWith = None,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    model: options.Model = None,
    snapshot: options.Snapshot = None,
    data: of_pipeline.Data = None,
    sandboxes: options.Sandboxes = None,
    iterations: options.Iterations = None,
    group_size: options.GroupSize = None,
    target_groups_per_iter: options.TargetGroups = None,
    learning_rate: options.LearningRate = None,
    limit: options.Limit = None,
    allow_evaluation_data: options.AllowEvaluationData = None,
    allow_overlap: options.AllowOverlap = None,
    tracker: options.Tracker = None,
    project: options.Project = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the whole cycle: check and prepare data, imitate, sample, train by a method, evaluate both policies, compare.

    Every step is a finqa command of its own with a folder and a manifest below the output folder; its command line is
    shown, and can be run alone. What is done is not done again: after a failure or a stop, --resume goes on.

    With no model named and no GPU, the embedded policy imitates a careless expert (03), and the method mends it.
    """
    spec, run = _wanted(ctx)
    if dry_run:
        shown = workflow.preview(spec, run, redo=redo, until=until)
        emit(workflow.document(shown), as_json=as_json, text="\n".join(step.command for step in shown.steps))
        return
    result = workflow.run_pipeline(
        spec,
        run,
        redo=redo,
        until=until,
        show=lambda line: None if as_json or quiet else print(line, file=sys.stderr, flush=True),
    )
    emit(workflow.document(result), as_json=as_json, text=lambda: _text(result))


def _wanted(ctx: typer.Context) -> tuple[PipelineSpec, Path]:
    """What is to be done, and in which folder."""
    given = ctx.params
    if (resume := given["resume"]) is not None:
        only_free(ctx, resume, command="pipeline", free=FREE_ON_RESUME)
        logs.configure()
        return workflow.stored_spec(resume), resume
    if given["method"] is None:
        raise UsageError("Say what trains the policy.", remedy=f"finqa pipeline --method {'|'.join(METHODS)}")
    spec = of_pipeline.asked(ctx, given["method"])
    if given["output"] is not None:
        check_recorded(given["output"], spec.document(), workflow.PIPELINE)
        return spec, given["output"]
    unnamed = OUTPUTS / "run_NNN"
    workflow.chosen_steps(
        spec, unnamed, redo=given["redo"], until=given["until"]
    )  # may refuse, before a folder is made
    return spec, unnamed if given["dry_run"] else workflow.new_output(OUTPUTS)


def _text(result: workflow.PipelineResult) -> str:
    rows = [(step.name, step.state, _time(step.seconds)) for step in result.steps]
    ends = [f"\nReport: {result.report}"] if result.report else [f"\nNext: finqa pipeline --resume {result.run}"]
    return "\n".join([plain_table(("step", "state", "time"), rows), *ends])


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"
