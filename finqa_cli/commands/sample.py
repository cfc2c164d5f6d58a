"""`finqa sample TARGET`: several candidates per question, to be made into preference pairs or demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.eval import target_settings
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.resume import given_flags, stored_settings
from finqa_cli.commands.shared.run_arguments import perform, run_path
from finqa_cli.errors import ThresholdError, UsageError
from finqa_cli.evaluation.candidates import SampleResult, sample, sampling_settings
from finqa_cli.settings import Settings

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

QUICK = {"candidates": 4, "limit": 16, "sandboxes": 8}
"""What --quick-test asks for, unless it is given."""

FLAGS = {
    "eval.attempts": "--num-candidates",
    "eval.temperature": "--temperature",
    "eval.limit": "--limit",
    "eval.seed": "--seed",
    "generation.top_p": "--top-p",
    "data.eval_split": "--split",
}
"""Settings that other commands use for other ends: here they are flags only."""


@app.command(epilog=f"Example: finqa sample embedded --num-candidates 8 --limit 100. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(help="A run, a checkpoint, a model folder or hub id, `embedded`, or an engine by name."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Go on with this interrupted run: play what is missing or ended in faults."),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option("--num-candidates", "-k", min=1, help="Candidates per question.", show_default="4"),
    ] = None,
    sample_temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=10, help="Sampling temperature.", show_default="0.8")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.001, max=1, help="Nucleus mass.", show_default="0.9")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split of the questions.", show_default="train")] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="Ask only so many questions; 0 asks all.", show_default="0"),
    ] = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="Four candidates of 16 questions, to see that everything works.")
    ] = False,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    dangerously_run_unisolated: options.DangerouslyRunUnisolated = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    snapshot: options.Snapshot = None,
    data: options.Data = None,
    sandboxes: options.Sandboxes = None,
    sessions_per_sandbox: options.SessionsPerSandbox = None,
    max_concurrent_create: options.MaxConcurrentCreate = None,
    max_concurrent_play: options.MaxConcurrentPlay = None,
    max_play_retries: options.MaxPlayRetries = None,
    max_steps: options.MaxSteps = None,
    max_gen_tokens: options.MaxGenTokens = None,
    engine_replicas: options.EngineReplicas = None,
    run_dir: options.RunDir = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Sample candidates of each question: texts, token ids, log-probabilities and rewards.

    Saves candidates.jsonl, scores.jsonl, trajectories.jsonl, report.json and manifest.json in the run folder. `finqa
    prefs` makes pairs of them, `finqa sft --minimum-reward 1` imitates the right ones.
    """
    if resume is not None:
        settings, who = stored_settings(ctx, resume, command="sample")
        run = resume
    elif target is None:
        raise UsageError("Say who plays, or which run to go on with.", remedy="finqa sample embedded")
    else:
        settings, who = _settings(ctx, target), target
        run = run_path(settings, "sample_")
    result = perform(
        lambda reporter, stopper: sample(
            settings, who, run, resume=resume is not None, reporter=reporter, stopper=stopper
        ),
        as_json=as_json,
        quiet=quiet,
        remedy=f"finqa sample --resume {run}",
    )
    document = {"run": str(run), "seconds": round(result.seconds, 3), **result.report}
    if not as_json:
        emit(document, as_json=False, text=lambda: _text(result))
    _check_faults(result, settings)
    if as_json:  # after the check: an error is a document of its own, and there is only one
        emit(document, as_json=True, text="")


def _settings(ctx: typer.Context, target: str) -> Settings:
    for assignment in ctx.params["assign"] or ():
        if flag := FLAGS.get(assignment.partition("=")[0].strip()):
            raise UsageError(f"--set {assignment} has no effect here.", remedy=flag)
    given = given_flags(ctx)
    wanted: dict[str, Any] = {"candidates": 4, "sample_temperature": 0.8, "top_p": 0.9, "limit": 0, "sandboxes": None}
    if ctx.params["quick_test"]:
        wanted |= QUICK
    wanted |= given
    extra = {**target_settings(ctx, target), "pool.sandboxes": wanted["sandboxes"]}
    given_values = {path: value for path, value in extra.items() if value is not None}
    settings = options.load(ctx, given_values, purpose="play").settings
    return sampling_settings(
        settings,
        candidates=wanted["candidates"],
        temperature=wanted["sample_temperature"],
        top_p=wanted["top_p"],
        split=wanted.get("split") or settings.data.train_split,
        limit=wanted["limit"],
    )


def _text(result: SampleResult) -> str:
    report = result.report
    passes = ", ".join(f"pass@{k} {share['value']:.3f}" for k, share in report["pass_at_k"].items())
    rate = report["parse_rate"]
    shares = [f"{100 * rate:.1f} % could be read" if rate is not None else "", passes]
    mixed = report["questions"] - report["questions_all_right"] - report["questions_none_right"]
    spread = f"{report['questions_with_spread']} of {plural(report['questions'], 'question')} have unequal rewards"
    return "\n".join(
        [
            f"{report['target']} on {report['data']['name']}/{report['split']}: {report['candidates']} candidates of "
            f"{plural(report['questions'], 'question')} in {result.seconds:.0f} s",
            "; ".join(filter(None, shares)),
            f"{spread}, {mixed} right and wrong candidates, {report['questions_none_right']} no right one",
            "",
            f"Candidates: {result.run / 'candidates.jsonl'}; rewards: {result.run / 'scores.jsonl'}",
            f"Next: finqa prefs {result.run}",
        ]
    )


def _check_faults(result: SampleResult, settings: Settings) -> None:
    faults, candidates = result.report["faults"], result.report["candidates"]
    if faults > settings.pool.max_fault_share * (faults + candidates):
        raise ThresholdError(
            f"{faults} of {faults + candidates} attempts ended in faults; they are no candidates.",
            remedy=f"finqa sample --resume {result.run}",
        )
