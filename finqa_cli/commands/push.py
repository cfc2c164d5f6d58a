"""`finqa push RUN`: policies on the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from finqa_cli import logs
from finqa_cli.commands.export import BaseModel, Evaluations, Licence, WeightType
from finqa_cli.commands.shared.options import AsJson, CommandApp, Quiet
from finqa_cli.commands.shared.output import emit, progress
from finqa_cli.data.fetch.retries import Patience
from finqa_cli.errors import UsageError
from finqa_cli.publishing.export_weights import Dtype, Source, Wish, find_source, find_sources
from finqa_cli.publishing.hub_repository import Hub, Plan, Pushed, plan_pushes, push_all
from finqa_cli.settings import dotenv_variables

app = CommandApp()


@app.command(
    epilog="Example: finqa push runs/qwen3_4b_default --num 3 --private --repo-prefix afeng. Exit codes: 0 ok, "
    "1 failed, 2 usage, 65 data, 69 hub unreachable, 74 storage, 77 no token or no access, 78 settings."
)
def main(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Run, checkpoint, adapter, model, or a verl trainer's folder with global_step_N."
        ),
    ],
    prefix: Annotated[
        str,
        typer.Option(
            "--repo-prefix", metavar="NAME", help="Owner on the hub, or OWNER/PREFIX of the repository names."
        ),
    ],
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Checkpoint to push.", show_default="newest")
    ] = None,
    num: Annotated[
        int | None, typer.Option("--num", min=1, metavar="K", help="Number of the newest checkpoints to push.")
    ] = None,
    to: Annotated[
        Literal["peft", "merged", "gguf-ready"] | None,
        typer.Option(
            "--to", help="Format: the adapter or one complete model.", show_default="the adapter, if there is one"
        ),
    ] = None,
    dtype: WeightType = None,
    private: Annotated[
        bool, typer.Option("--private", help="Push to private repositories; existing public ones are refused.")
    ] = False,
    base_model: BaseModel = "",
    licence: Licence = "",
    evaluations: Evaluations = [],  # noqa: B006  # Typer copies it
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the planned pushes with their model cards, and upload nothing.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="Another hub (as HF_ENDPOINT).", show_default=False),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Publish policies on the Hugging Face hub as NAME/<folder>_step-<N>, each with a model card.

    Every push is one commit and is checked afterwards. The token is HF_TOKEN, of the environment or .env, or
    that of `hf auth login`.
    """
    logs.configure()
    dotenv_variables()  # HF_TOKEN may be there
    if step is not None and num is not None:
        raise UsageError("--step selects one checkpoint, --num several.", remedy="give one of them")
    sources = [find_source(source, step)] if num is None else find_sources(source, num)
    plans = plan_pushes(
        sources, _wish(sources, to, dtype, base_model), prefix, licence=licence, evaluations=evaluations
    )
    if dry_run:
        planned = [_planned(plan, private) for plan in plans]
        emit({"dry_run": True, "pushes": planned}, as_json=as_json, text=lambda: _plan_text(plans, private))
        return
    with progress(as_json=as_json, quiet=quiet) as reporter:
        hub = Hub(endpoint=endpoint, patience=Patience(), tell=reporter.line)
        pushed = push_all(plans, hub, private=private, reporter=reporter)
    emit({"dry_run": False, "pushes": [_document(each) for each in pushed]}, as_json=as_json, text=_text(pushed))


def _wish(
    sources: list[Source], to: Literal["peft", "merged", "gguf-ready"] | None, dtype: Dtype | None, base_model: str
) -> Wish:
    """Return the form to push; without --to the adapter where there is one, else the whole model."""
    has_adapter = all(source.policy.adapter is not None for source in sources)
    return Wish(form=to or ("peft" if has_adapter and dtype is None else "merged"), dtype=dtype, base_model=base_model)


def _planned(plan: Plan, private: bool) -> dict[str, Any]:
    return {
        "repository": plan.repository,
        "step": plan.source.step,
        "form": plan.wish.form,
        "private": private,
        "card": plan.card.text(),
    }


def _plan_text(plans: list[Plan], private: bool) -> str:
    kind = "private" if private else "public"
    lines = [f"{plan.source.title} as {plan.wish.form} to {plan.repository} ({kind})" for plan in plans]
    return "\n".join([*lines, "", plans[-1].card.text(), "Nothing was sent."])


def _document(pushed: Pushed) -> dict[str, Any]:
    return {
        "repository": pushed.repository,
        "url": pushed.url,
        "commit": pushed.commit,
        "private": pushed.private,
        "files": dict(pushed.files),
    }


def _text(pushed: list[Pushed]) -> str:
    return "\n".join(
        f"Pushed {sum(each.files.values()) / 1e6:.1f} MB to {each.url} at {each.commit[:12]}"
        f"{' (private)' if each.private else ''}"
        for each in pushed
    )
