"""`finqa prefs RUN...`: preference pairs from candidates, or from the attempts of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.commands.shared.options import AsJson, CommandApp, Quiet
from finqa_cli.commands.shared.output import emit, progress
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.training.preference.build_pairs import PairRules, PrefsResult, as_text, build_pairs

app = CommandApp()

QUICK_QUESTIONS = 32


@app.command(
    epilog="Example: finqa prefs runs/sample_20260101_120000 --rule right-wrong. Exit codes: 0 ok, 1 failed, 2 usage, "
    "65 data, 74 storage, 78 settings."
)
def main(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Runs of finqa sample, eval or train with several attempts per question, or their "
            "candidates.jsonl or trajectories.jsonl."
        ),
    ],
    rule: Annotated[
        Rule,
        typer.Option(
            "--rule",
            help="best-worst: best with worst, second best with second worst, ...; all: every pair with a "
            "sufficient difference; right-wrong: right with wrong attempts.",
        ),
    ] = "best-worst",
    margin: Annotated[float, typer.Option("--margin", help="Smallest difference of the rewards of a pair.")] = 0.0,
    most: Annotated[int, typer.Option("--pairs-per-question", min=1, help="Largest number of pairs per question.")] = 4,
    held_out_share: Annotated[
        float,
        typer.Option(
            "--held-out-share", min=0, max=0.9, help="Share of the companies that is held out for validation."
        ),
    ] = 0.1,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help=f"Use only the first {QUICK_QUESTIONS} questions.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="New folder.", show_default="runs/prefs_YYYYMMDD_HHMMSS")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of ties, choices and held-out companies.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
