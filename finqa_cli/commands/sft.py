"""`finqa sft`: imitation of recorded demonstrations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands import _options as options
from finqa_cli.commands._output import emit
from finqa_cli.commands._runs import perform, run_path
from finqa_cli.workflows.sft import SftResult, sft

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=f"Example: finqa sft runs/demonstrations --model Qwen/Qwen3-4B --epochs 2. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    demonstrations: Annotated[
        list[Path], typer.Argument(help="Run folders or trajectories.jsonl files, as `finqa eval` writes them.")
    ],
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Make tokenizer and model from nothing, as this TOML file specifies."),
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Passes over the data.", show_default="3")] = None,
    sft_learning_rate: Annotated[
        float | None, typer.Option("--lr", "--learning-rate", help="Peak AdamW step size.", show_default="5e-6")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", help="Tokens of one optimizer step.", show_default="8192")
    ] = None,
    minimum_reward: Annotated[
        float | None,
        typer.Option("--minimum-reward", help="Imitate only episodes that earned this.", show_default="all"),
    ] = None,
    model: options.Model = None,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    allow_evaluation_data: options.AllowEvaluationData = None,
    allow_overlap: options.AllowOverlap = None,
    run_dir: options.RunDir = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model (or with --init a new one) to say what the demonstrations say; loss on assistant tokens only."""
    extra = {
        "sft.epochs": epochs,
        "sft.learning_rate": sft_learning_rate,
        "sft.batch_tokens": batch_tokens,
        "sft.minimum_reward": minimum_reward,
    }
    settings = options.load(ctx, extra).settings
    run = run_path(settings, "sft_")
    result = perform(
        lambda reporter, stopper: sft(settings, demonstrations, run, init=init, reporter=reporter, stopper=stopper),
        as_json=as_json,
        quiet=quiet,
    )
    emit({name: _plain(value) for name, value in asdict(result).items()}, as_json=as_json, text=_text(result))


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _text(result: SftResult) -> str:
    held_out = "" if result.validation_loss is None else f", {result.validation_loss:.4f} on held-out companies"
    return (
        f"{result.demonstrations} demonstrations, {result.steps} steps in {result.seconds:.0f} s: "
        f"loss {result.loss:.4f}{held_out}.\nPolicy: {result.policy}\nTry it: finqa eval {result.policy}"
    )
