"""`finqa export RUN --to FORM`: a policy or its attempts in the form that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finqa_cli import logs
from finqa_cli.algorithms.pairing import Rule
from finqa_cli.commands.shared.options import AsJson, CommandApp, Quiet
from finqa_cli.commands.shared.output import emit, plural, progress
from finqa_cli.errors import UsageError
from finqa_cli.publishing import export_weights as weights
from finqa_cli.publishing.export_attempts import Selection, Written, export_records
from finqa_cli.publishing.export_weights import Dtype, Source, Wish, find_source
from finqa_cli.publishing.model_card import card_of

app = CommandApp()

Form = Literal["peft", "merged", "gguf-ready", "trl-sft", "trl-preference", "openai-jsonl", "inspect"]

WeightType = Annotated[
    Dtype | None,
    typer.Option(
        "--dtype",
        help="Number format of the weights of a complete model.",
        show_default="float32, or bfloat16 for gguf-ready",
    ),
]
BaseModel = Annotated[
    str,
    typer.Option(
        "--base-model", metavar="HUB_ID", help="Name of the base model on the hub.", show_default="as trained"
    ),
]
Licence = Annotated[
    str, typer.Option("--license", metavar="SPDX", help="Licence for the model card.", show_default="not stated")
]
Evaluations = Annotated[
    list[Path], typer.Option("--eval", metavar="RUN", help="Evaluation of this policy for the model card; repeatable.")
]


@app.command(
    epilog="Example: finqa export runs/20260101_120000 --step 100 --to merged --dtype bfloat16. "
    "Exit codes: 0 ok, 1 failed, 2 usage, 65 data, 74 storage, 78 settings."
)
def main(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run, checkpoint, adapter, model, or a verl trainer's folder with global_step_N; for attempts a run, "
            "trajectories.jsonl, or a folder of finqa prefs.",
        ),
    ],
    to: Annotated[
        Form,
        typer.Option(
            "--to",
            help="peft: the adapter; merged: one complete model; gguf-ready: a model for llama.cpp's "
            "converter; trl-sft, "
            "trl-preference, openai-jsonl: attempts to train on; inspect: an evaluation as a log.",
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, help="Step of the checkpoint, or of the evaluation for inspect.", show_default="newest"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder.", show_default="exports/NAME_step-N_FORM")
    ] = None,
    dtype: WeightType = None,
    base_model: BaseModel = "",
    licence: Licence = "",
    evaluations: Evaluations = [],  # noqa: B006  # Typer copies it
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", help="Only attempts with at least this reward.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Only questions of this split.", show_default="all")] = "",
    rule: Annotated[
        Rule | None,
        typer.Option("--rule", help="Rule of trl-preference for pairs of a run's attempts.", show_default="best-worst"),
    ] = None,
    allow_evaluation_data: Annotated[
        bool,
        typer.Option("--allow-evaluation-data", help="Export training data from data that is for evaluation only."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a policy or recorded attempts in the form that other tools read, into a new folder.

    Whole models are computed in float32 and rounded once. FSDP shards of verl trainers are put together.
    """
    logs.configure()
    of_policies = {"--dtype": dtype, "--base-model": base_model, "--license": licence, "--eval": evaluations}
    of_attempts = {
        "--min-reward": min_reward,
        "--split": split,
        "--rule": rule,
        "--allow-evaluation-data": allow_evaluation_data,
    }
    if to == "peft" or to == "merged" or to == "gguf-ready":
        _refuse(of_attempts, to)
        wish = Wish(form=to, dtype=dtype, base_model=base_model)
        _policy(find_source(source, step), wish, out, licence, evaluations, as_json=as_json, quiet=quiet)
        return
    _refuse(of_policies, to)
    if rule is not None and to != "trl-preference":
        raise UsageError(f"--rule pairs attempts; {to} has no pairs.", remedy="leave out --rule")
    selection = Selection(
        minimum_reward=min_reward,
        split=split,
        step=step,
        rule=rule or "best-worst",
        allow_evaluation_data=allow_evaluation_data,
    )
    folder = out or Path("exports") / f"{_folder_of(Path(source)).name}_{to}"
    written = export_records(Path(source), to, selection, folder)
    emit(
        {"file": str(written.file), "rows": written.rows, "left_out": written.left_out, "wrong": written.wrong},
        as_json=as_json,
        text=lambda: _records_text(written, to),
    )


def _policy(
    source: Source,
    wish: Wish,
    out: Path | None,
    licence: str,
    evaluations: list[Path],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    weights.check_wish(source, wish)
    folder = out or Path("exports") / f"{source.title}_{wish.form}"
    card = card_of(source, wish.relation, base_model=wish.base_model, licence=licence, evaluations=evaluations)
    with progress(as_json=as_json, quiet=quiet) as reporter:
        if local := weights.local_base(source, wish):
            reporter.line(local)
        with reporter.work(f"writing {source.title} as {wish.form} into {folder}"):
            files = weights.export_weights(source, wish, folder, card.text())
    command = weights.gguf_command(folder, wish.precision) if wish.form == "gguf-ready" else ""
    result: dict[str, Any] = {
        "folder": str(folder),
        "form": wish.form,
        "step": source.step,
        "dtype": None if wish.form == "peft" else wish.precision,
        "files": {path.name: path.stat().st_size for path in files},
        **({"next": command} if command else {}),
    }
    emit(result, as_json=as_json, text=lambda: _text(source, result))


def _text(source: Source, result: dict[str, Any]) -> str:
    size = sum(result["files"].values())
    lines = [f"{source.title} as {result['form']}: {plural(len(result['files']), 'file')}, {size / 1e6:.1f} MB"]
    lines.append(f"Folder: {result['folder']}")
    if "next" in result:
        lines.append(f"Next, with llama.cpp: {result['next']}")
    return "\n".join(lines)


def _records_text(written: Written, form: Form) -> str:
    what = {"trl-preference": "pair", "inspect": "sample"}.get(form, "row")
    left = f", {written.left_out} left out" if written.left_out else ""
    lines = [f"{plural(written.rows, what)}{left}: {written.file}"]
    if written.wrong:
        lines.append(f"Not right: {written.wrong} of them. --min-reward leaves out attempts with lower rewards.")
    return "\n".join(lines)


def _refuse(unused: dict[str, Any], form: Form) -> None:
    if given := [name for name, value in unused.items() if value not in (None, "", False, [])]:
        raise UsageError(f"--to {form} takes no {', '.join(given)}.", remedy="finqa export --help")


def _folder_of(source: Path) -> Path:
    return (source if source.is_dir() else source.parent).resolve()
