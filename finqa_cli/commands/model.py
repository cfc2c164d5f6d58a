"""`finqa model`: what a model is built of, what it needs, and the settings that fit it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.diagnostics import model_inspection as workflow
from finqa_cli.diagnostics.model_inspection import GB, RANKS, Inspection, tier_text
from finqa_cli.errors import UsageError
from finqa_cli.placement import memory_formulas
from finqa_cli.placement.placement_types import Placement, plan_document, plan_line

MOST_GB = 100_000

app = CommandApp("Inspect the architecture of a model and write settings for it.", epilog=EXIT_CODES)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="Model folder, hub id, run, checkpoint, or `embedded`.")],
    rank: Annotated[int, typer.Option("--lora-rank", min=0, help="Adapter rank; 0 trains all weights.")] = 16,
    gpu_memory: Annotated[float, typer.Option("--gpu-memory", help="Memory of one GPU, in GB.")] = 80.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="TOML file to write, for --config of other commands.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read what a model is built of, without its weights, and what it needs of GPUs; --out writes its settings.

    Reads config.json and the tokenizer only. Memory follows from the architecture: weights in bfloat16, 16 bytes for
    each trained weight, keys and values of each token; activations are an estimate.

    Exit codes: 0 ok, 69 the hub cannot be reached, 74 --out cannot be written, 77 the licence is not accepted, 78 there
    is no such model or its architecture is unknown.

    Example: finqa model inspect Qwen/Qwen3-4B --out mine.toml, then: finqa train --config mine.toml --config grpo
    """
    logs.configure()
    if not 1 <= gpu_memory <= MOST_GB:
        raise UsageError(f"--gpu-memory must be 1 to {MOST_GB:,} GB, not {gpu_memory:g}.")
    found = workflow.inspect(model, rank=rank, gpu_bytes=gpu_memory * GB)
    if out is not None:
        workflow.write(tier_text(found), out, force=force)
    written = f"\n\nWritten to {out}. Show it: finqa config show --config {out}" if out else ""
    emit({**_document(found), "out": out}, as_json=as_json, text=lambda: _text(found) + written)


def _document(found: Inspection) -> dict[str, Any]:
    model = found.architecture
    plans = {str(count): plan_document(placed) for count, placed in found.plans.items()}
    return {
        **asdict(found),
        "plans": plans,
        "memory": {
            "weights_bytes": memory_formulas.weights(model),
            "kv_bytes_per_token": memory_formulas.kv_per_token(model),
            "activation_bytes": memory_formulas.activations(model, found.token_budget, rank=found.rank),
            "trained": {
                str(rank): {
                    "parameters": memory_formulas.trained(model, found.targets, rank),
                    "optimizer_bytes": _optimizer(found, rank),
                    "learner_bytes": _learner(found, rank),
                }
                for rank in _ranks(found)
            },
        },
    }


def _text(found: Inspection) -> str:
    model = found.architecture
    layers = [(part.name, part.kind, f"{part.inputs} x {part.outputs}", part.count) for part in model.linear]
    trained = [
        (
            rank or "0 (all weights)",
            f"{memory_formulas.trained(model, found.targets, rank):,}",
            _gb(_optimizer(found, rank)),
            _gb(_learner(found, rank)),
        )
        for rank in _ranks(found)
    ]
    return "\n\n".join(
        [
            plain_table((), _facts(found)),
            plain_table(("linear layer", "class", "in x out", "count"), layers),
            plain_table(("LoRA rank", "trained", "with optimizer", "learner in all"), trained),
            plain_table(("GPUs", "placement of finqa train"), _plans(found)),
            *(["\n".join(f"warning: {warning}" for warning in found.warnings)] if found.warnings else []),
        ]
    )


def _facts(found: Inspection) -> list[tuple[str, object]]:
    model = found.architecture
    return [
        ("model", found.model),
        ("family", f"{model.family} ({model.class_name})"),
        ("parameters", f"{model.parameters:,}"),
        ("stored as", model.dtype or "not said"),
        ("layers", f"{model.layers} ({', '.join(model.layer_kinds)})" if model.layer_kinds else model.layers),
        ("hidden", model.hidden),
        ("heads", f"{model.heads} of {model.head_dim}, {model.key_value_heads} for keys and values"),
        ("vocabulary", f"{model.vocabulary:,}"),
        ("context", f"{model.context:,}" if model.context else "not limited"),
        ("LoRA targets", ", ".join(found.targets) or "none"),
        ("codecs", ", ".join(found.codecs) or "none"),
        ("weights", f"{_gb(memory_formulas.weights(model))} in bfloat16"),
        (
            "keys and values",
            f"{memory_formulas.kv_per_token(model) / 1e3:,.1f} kB a token" if model.kv_values_per_token else "?",
        ),
        ("learner", f"{_gb(found.learner_bytes)} at rank {found.rank} and {found.token_budget:,} tokens"),
    ]


def _plans(found: Inspection) -> list[tuple[object, ...]]:
    size = f"{found.gpu_bytes / GB:.0f} GB"
    return [
        (f"{count} x {size}", plan_line(placed, "vllm") if isinstance(placed, Placement) else "does not fit")
        for count, placed in found.plans.items()
    ]


def _optimizer(found: Inspection, rank: int) -> int:
    """Return the bytes of trained weights with their gradients and AdamW's averages: 16 bytes per trained weight."""
    return 16 * memory_formulas.trained(found.architecture, found.targets, rank)


def _learner(found: Inspection, rank: int) -> int:
    """Return the memory that the learner needs on one device, in bytes."""
    parts = memory_formulas.learner_items(found.architecture, found.token_budget, rank=rank, targets=found.targets)
    return int(sum(parts.values()))


def _ranks(found: Inspection) -> list[int]:
    return sorted({*RANKS, found.rank, 0}) if found.targets else [0]


def _gb(size: float) -> str:
    return f"{size / GB:,.1f} GB" if size >= 0.1 * GB else f"{size / 1e6:,.1f} MB"
