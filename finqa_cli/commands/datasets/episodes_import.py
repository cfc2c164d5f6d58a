"""`finqa data import harness`: episodes that a harness of OpenEnv recorded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.evaluation.harness_episodes import ImportedEpisodes, import_episodes
from finqa_cli.wiring.command_settings import run_path


@offers("environment", "run.dir")
def harness(
    line: CommandLine,
    files: Annotated[
        list[Path], typer.Argument(help="results.jsonl of OpenEnv's CollectRunner, or lines with a training_trace.")
    ],
    target: Annotated[str, typer.Option("--target", help="Name of what played, for reports.")] = "harness",
    split: Annotated[str, typer.Option("--split", help="Split of the tasks: train, dev or test.")] = "train",
) -> None:
    """Import recorded episodes of OpenEnv harnesses as the attempts of an evaluation, for finqa sft, prefs and report.

    A training_trace (OpenEnv's TrainingTrace) brings the exact tokens of every model call, which finqa dpo trains on.
    Episodes whose conversation was rewritten, or whose completions are masked in part, are left out and counted.

    Exit codes: 0 ok, 2 usage, 65 a line is malformed or no episode can be imported, 74 writing failed, 78 settings.

    Example: finqa data import harness results.jsonl --target qwen3-4b --run-dir runs/harness
    """
    settings = line.load({}, quiet=True).settings
    result = import_episodes(files, settings, run_path(settings, "harness_"), target=target, split=split)
    emit({**asdict(result), "run": str(result.run)}, as_json=line.as_json, text=lambda: _text(result))


def _text(result: ImportedEpisodes) -> str:
    tokens = f"{result.with_tokens} with the exact tokens of every call" if result.with_tokens else "without tokens"
    return "\n".join(
        [
            f"{plural(result.attempts, 'attempt')}, {tokens}, mean reward {result.reward_mean:.3f}: {result.run}",
            *(f"left out, {count} times: {reason}" for reason, count in result.left_out.items()),
            f"Next: finqa sft {result.run}, or finqa prefs {result.run}",
        ]
    )
