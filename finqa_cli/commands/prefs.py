"""`finqa prefs RUN...`: preference pairs from candidates, or from the attempts of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.progress import progress
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.training.preference.build_pairs import PairRules, PrefsResult, as_text, build_pairs

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

QUICK_QUESTIONS = 32


@app.command(
    epilog="Example: finqa prefs runs/sample_20260101_120000 --rule right-wrong. Exit codes: 0 ok, 1 failed, 2 usage, "
    "65 data, 74 storage, 78 settings."
)
def main(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of finqa sample, eval or train with several attempts per question, or their "
            "candidates.jsonl or trajectories.jsonl."
        ),
    ],
    rule: Annotated[
        Rule,
        typer.Option(
            "--rule",
            help="best-worst: best with worst, second best with second worst, ...; all: every pair that differs "
            "enough; right-wrong: right with wrong ones.",
        ),
    ] = "best-worst",
    margin: Annotated[float, typer.Option("--margin", help="Rewards of a pair differ by this at least.")] = 0.0,
    most: Annotated[int, typer.Option("--pairs-per-question", min=1, help="Pairs of a question at most.")] = 4,
    held_out_share: Annotated[
        float, typer.Option("--held-out-share", min=0, max=0.9, help="Share of the companies that only measure.")
    ] = 0.1,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help=f"Look at the first {QUICK_QUESTIONS} questions only.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="New folder.", show_default="runs/prefs_YYYYMMDD_HHMMSS")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of ties, choices and held-out companies.")] = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make pairs of a better and a worse attempt at the same question, for `finqa dpo`.

    Saves pairs.jsonl, report.json, stats.txt with a histogram of the margins, and manifest.json.
    """
    rules = PairRules(
        rule=rule,
        margin=margin,
        most=most,
        held_out_share=held_out_share,
        questions=QUICK_QUESTIONS if quick_test else 0,
        seed=seed,
    )
    with progress(as_json=as_json, quiet=quiet) as reporter:
        result = build_pairs(runs, rules, run_dir or new_run_path(Path("runs"), "prefs_"), reporter)
    emit({"folder": str(result.folder), **result.report}, as_json=as_json, text=lambda: _text(result))


def _text(result: PrefsResult) -> str:
    pairs = result.folder / "pairs.jsonl"
    return f"{as_text(result.report)}\nPairs: {pairs}\nNext: finqa dpo {result.folder}"
