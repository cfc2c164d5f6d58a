"""`finqa train`: reinforcement learning in sandboxes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands import dpo
from finqa_cli.commands.eval import list_measures
from finqa_cli.commands.shared.command_line import CommandLine, shown_counts
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, next_lines, plain_table, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.diagnostics.machine_checks import plan_report
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.before_after import asked_questions, before_after_rows
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import Loaded, Settings
from finqa_cli.settings.offered import OF_TRAIN, QUICK_TRAIN, offered_settings
from finqa_cli.statistics import describe_cut_replies
from finqa_cli.training.rl.dry_run import DryRunResult, closing, dry_run
from finqa_cli.training.rl.rl_run import TrainResult, check_idle_options, lengthen, train
from finqa_cli.wiring.command_settings import limit_evaluation, run_path
from finqa_cli.wiring.placing import visible_devices

app = CommandApp()

DRY = {"train.iterations": 10, "train.target_groups_per_iter": 4, "train.group_size": 2}
"""Counts of --dry-run, unless a flag, a variable or a file sets them."""


@app.command(epilog=f"Smoke test: finqa train --sandboxes 2 --iterations 1 --group-size 2. {EXIT_CODES}")
@offers(*OF_TRAIN)
def main(
    line: CommandLine,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Run to resume from its newest checkpoint.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help="Pairs for --optimizer dpo, as for `finqa dpo`."),
    ] = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help=f"A short run: {shown_counts(QUICK_TRAIN)}.")
    ] = False,
    only_rollouts: Annotated[
        bool,
        typer.Option("--dry-run", help=f"Rollouts with any engine, no updates: {shown_counts(DRY)}."),
    ] = False,
) -> None:
    """Train a LoRA policy: groups of episodes in sandboxes, credit, an update, the new weights back to the engine.

    Evaluates on held-out companies before and after.
    """
    if pairs is not None:
        _on_pairs(line, pairs, quick_test=quick_test)
    elif resume is not None:
        _on_groups(line, _stored(line, resume), resume, resume=True)
    else:
        loaded = line.load(line.quick(QUICK_TRAIN), purpose="play" if only_rollouts else "train")
        line.warn_of_project(loaded.settings)
        loaded, note = (loaded, "") if only_rollouts else limit_evaluation(loaded)
        for text in filter(None, (check_idle_options(loaded), note)):
            if not (line.as_json or line.quiet):
                print(text, file=sys.stderr)
        if only_rollouts:
            _play_only(line, loaded)
        else:
            _on_groups(line, loaded.settings, run_path(loaded.settings), resume=False)


def _on_groups(line: CommandLine, settings: Settings, run: Path, *, resume: bool) -> None:
    """Train on groups of episodes."""
    result = perform(
        line,
        lambda reporter, stopper: train(
            settings, run, resume=resume, reporter=reporter, stopper=stopper, again=line.again
        ),
        remedy=f"finqa train --resume {run}",
        learner=settings.learner.name,
    )
    document = {
        "run": str(run),
        "iterations": result.iterations,
        "seconds": round(result.seconds, 3),
        "before": result.before,
        "after": result.after,
    }
    text = (lambda: _finished_text(result)) if result.was_finished else (lambda: training_text(result))
    emit(document, as_json=line.as_json, text=text)


def _finished_text(result: TrainResult) -> str:
    """Report that a run that was to be resumed is finished."""
    return (
        f"{result.run} is already finished: all of its {plural(result.iterations, 'iteration')} are done.\n"
        f"{_following(result.run)}"
    )


def _on_pairs(line: CommandLine, pairs: Path, *, quick_test: bool) -> None:
    """Train on pairs as `finqa dpo` does.

    Raises:
        UsageError: A parameter is given that `finqa dpo` does not offer.
    """
    known = {each.path for each in offered_settings(dpo.OFFERED)}
    known |= {"pairs", "optimizer.name", "quick_test", "config", "assign", "as_json", "quiet"}
    if refused := set(line.typed) - known:
        resume = line.context.params["resume"]
        raise UsageError(
            f"With --pairs nothing is played, so {line.written(refused)} would have no effect.",
            remedy=f"finqa dpo --resume {resume}" if resume else f"finqa dpo {pairs}",
        )
    extra = {**dpo.followed(line, pairs), **(dpo.QUICK if quick_test else {})}
    settings = line.load(extra, purpose="dpo").settings
    line.warn_of_project(settings)
    most = dpo.QUICK_PAIRS if quick_test else 0
    dpo.train_on_pairs(line, settings, pairs, run_path(settings, "dpo_"), resume=False, most=most)


def _play_only(line: CommandLine, loaded: Loaded) -> None:
    """Play rollouts without a learner."""
    few = {path: count for path, count in DRY.items() if loaded.origins[path].startswith(("default", "profile"))}
    loaded = line.load({**line.quick(QUICK_TRAIN), **few}, quiet=True, purpose="play")
    settings = loaded.settings
    plan = plan_report(settings, loaded.undecided, visible_devices())
    if not (line.as_json or line.quiet):
        print(plan.text or f"placement: {plan.check.detail}\nfix: {plan.check.remedy}", file=sys.stderr)
    run = run_path(settings, "dry_")
    result = perform(line, lambda reporter, stopper: dry_run(settings, run, reporter=reporter, stopper=stopper))
    document = {
        **asdict(result),
        "run": str(result.run),
        "seconds": round(result.seconds, 3),
        "plan": plan.document,
    }
    emit(document, as_json=line.as_json, text=lambda: _dry_run_text(result))


def _stored(line: CommandLine, run: Path) -> Settings:
    """Return the stored settings of a run. It can get more iterations unless its learning rate depends on them."""
    typed = line.check_resumed(run, command="train")
    return lengthen(line.stored_settings(run, "train"), run, typed.get("train.iterations"))


def training_text(result: TrainResult) -> str:
    """Return the table of before and after, and the run folder."""
    if not result.before:
        return f"{plural(result.iterations, 'iteration')} in {result.seconds:.0f} s, not evaluated.\nRun: {result.run}"
    rows = before_after_rows(result.before, result.after)
    return "\n".join(
        [
            f"Held-out questions ({asked_questions(result.after)}, never trained on):",
            plain_table(["", "before", f"after {plural(result.iterations, 'iteration')}"], rows),
            *_cut_replies(result),
            "",
            f"Run: {result.run} ({result.seconds:.0f} s)",
            _following(result.run),
        ]
    )


def _cut_replies(result: TrainResult) -> list[str]:
    """Return a line on replies of the last evaluation that were cut; none if there are none, or in older records."""
    cut = result.after.get("cut_replies", {})
    played = {kind: facts["episodes"] for kind, facts in result.after.get("by_kind", {}).items()}
    limit = read_settings(result.run)["generation"]["max_gen_tokens"] if cut else 0
    return [text] if (text := describe_cut_replies(cut, played, limit)) else []


def _following(run: Path) -> str:
    return next_lines(f"finqa report {run}", f"finqa eval {run}", f"finqa train --resume {run} --iterations N")


def _dry_run_text(result: DryRunResult) -> str:
    measures = list_measures(result.measures)
    return "\n".join(["Dry run complete!", closing(result), *measures, f"Run: {result.run} ({result.seconds:.0f} s)"])
