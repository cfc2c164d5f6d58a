"""`finqa dpo PAIRS`: direct preference optimization.

Like `finqa sft`, it is separate from `finqa train`: it reads pairs from a file, so flags of sandboxes, groups and
rollouts would have no effect. `finqa train --optimizer dpo --pairs PAIRS` does the same and refuses those flags.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.documents import parse_json
from finqa_cli.errors import UsageError
from finqa_cli.grading import JUDGES
from finqa_cli.settings import Settings
from finqa_cli.training.preference.dpo_run import DpoResult, dpo
from finqa_cli.training.preference.preference_loop import HeldOut
from finqa_cli.training.training_loop import result_document
from finqa_cli.wiring.command_settings import run_path, stored_parameter

app = CommandApp()

OFFERED = (
    *("optimizer.options", "train.learning_rate", "model.name", "lora", "train.gradient_checkpointing"),
    *("train.learner_processes", "data.allow_evaluation_only", "data.allow_overlap", "run.dir", "trackers"),
    *("run.mirror", "run.project", "train.seed"),
)

QUICK_PAIRS = 8
QUICK = {
    "optimizer.options.epochs": 1.0,
    "optimizer.options.pairs_per_step": 4,
    "optimizer.options.validate_every": 1,
}
"""Counts of --quick-test, unless they are given."""

FOLLOWED = ("environment", "reward", "data.snapshot", "data.path", "generation.max_steps", "generation.max_gen_tokens")
"""Settings taken from the run that the pairs were made from, so that an evaluation asks the same questions."""


@app.command(epilog=f"Example: finqa dpo runs/prefs_20260101_120000 --beta 0.1. {EXIT_CODES}")
@offers(*OFFERED)
def main(
    line: CommandLine,
    pairs: Annotated[Path | None, typer.Argument(help="Folder that `finqa prefs` wrote, or its pairs.jsonl.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Interrupted run to resume after its newest checkpoint.")
    ] = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="Two steps on eight pairs, as a quick test.")
    ] = False,
) -> None:
    """Train a policy to prefer the chosen attempt of each pair, and measure that on held-out companies.

    Saves checkpoints/best, final and step_N, metrics.jsonl, report.json and manifest.json in the run folder.
    """
    if resume is not None:
        line.check_resumed(resume, command="dpo")
        settings = line.stored_settings(resume, "dpo")
        source, most = Path(stored_parameter(resume, "target", "dpo")), stored_parameter(resume, "most_pairs", "dpo")
        train_on_pairs(line, settings, source, resume, resume=True, most=int(most))
    elif pairs is None:
        raise UsageError(
            "No pairs and no run to resume are given.", remedy="finqa prefs RUN --run-dir DIR, then finqa dpo DIR"
        )
    else:
        extra = {**followed(line, pairs), "optimizer.name": "dpo", **line.quick(QUICK)}
        settings = line.load(extra, purpose="dpo").settings
        line.warn_of_project(settings)
        most = QUICK_PAIRS if quick_test else 0
        train_on_pairs(line, settings, pairs, run_path(settings, "dpo_"), resume=False, most=most)


def train_on_pairs(line: CommandLine, settings: Settings, source: Path, run: Path, *, resume: bool, most: int) -> None:
    """Train on pairs and print the result."""
    result = perform(
        line,
        lambda reporter, stopper: dpo(
            settings, source, run, resume=resume, most=most, reporter=reporter, stopper=stopper, again=line.again
        ),
        remedy=f"finqa dpo --resume {run}",
        learner=settings.learner.name,
    )
    emit(result_document(result), as_json=line.as_json, text=lambda: _text(result))


def followed(line: CommandLine, pairs: Path) -> dict[str, Any]:
    """Return `FOLLOWED` settings of the run that the pairs were made from; {} if `finqa prefs` did not store them.

    Limits that the user sets, also in a file, stay. A limit of tokens is followed only for the model of that run: it
    counts the tokens of its tokenizer, and would cut the replies of another one.
    """
    folder = pairs if pairs.is_dir() else pairs.parent
    try:
        stored = parse_json((folder / "settings.json").read_text(encoding="utf-8"))
        found, of_model = dict[str, Any](), stored["model"]["name"]
        for path in FOLLOWED:
            section, _, field = path.partition(".")
            if field:
                found[path] = stored[section][field]
            else:
                found[f"{section}.name"] = stored[section]["name"]
                found |= {f"{section}.options.{key}": value for key, value in stored[section]["options"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # pairs of another origin: the user's settings decide which questions an evaluation asks
    if (judge := found.get("environment.options.grader")) in JUDGES:  # an evaluation in between asks no judge
        found["environment.options.grader"] = JUDGES[judge]
    own = line.load(quiet=True)
    limits = {path for path in found if path.startswith("generation.")}
    dropped = {path for path in limits if not own.origins[path].startswith(("default", "profile"))}
    if own.settings.model.name != of_model:
        dropped.add("generation.max_gen_tokens")
    return {path: value for path, value in found.items() if path not in dropped}


def _text(result: DpoResult) -> str:
    measured = [_row("before", result.before), _row("after", result.after)] if result.before and result.after else []
    best = f"; best on held-out pairs: {result.best} (step {result.best_step})" if result.best else ""
    return "\n".join(
        [
            f"{plural(result.pairs, 'pair')}, {plural(result.steps, 'step')} in {result.seconds:.0f} s",
            *measured,
            f"Policy: {result.policy}{best}",
            f"Evaluate it: finqa eval {result.policy}",
        ]
    )


def _row(label: str, held_out: HeldOut | None) -> str:
    assert held_out is not None
    low, high = held_out.accuracy_interval
    return (
        f"{label:>6}: preference accuracy {held_out.accuracy:.3f} [{low:.3f}, {high:.3f}] on {held_out.pairs} held-out "
        f"pairs, margin {held_out.margin:.3f} nats, likelier {held_out.ranking_accuracy:.3f}"
    )
