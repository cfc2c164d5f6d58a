"""`finqa config`: the resolved settings and where each comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, print_table
from finqa_cli.masking import masked
from finqa_cli.settings import Loaded, list_shipped, to_stated_dict

app = typer.Typer(
    help="Show the resolved settings and where each comes from.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.callback()
def _group() -> None: ...


@app.command()
def show(
    ctx: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Also show which layer set each value.")] = False,
    model: options.Model = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """Print every setting as a run would see it: defaults < profile < files < .env < environment < flags.

    Secrets are masked. Exit codes: 0 ok, 78 a setting is unknown or wrong.

    Example: finqa config show --origin --set train.group_size=8
    """
    loaded = options.load(ctx)
    emit(_document(loaded, origin), as_json=as_json, text=lambda: _print(loaded, origin))


@app.command("list")
def list_files(as_json: options.AsJson = False) -> None:
    """List the settings that ship with finqa, which --config takes by name: model tiers, optimizer tiers, experiments.

    A model tier and an optimizer tier go together, any with any. Exit codes: 0 ok.

    Example: finqa train --config qwen3-4b --config grpo
    """
    found = list_shipped()
    rows = [(item.name, item.kind, item.about.partition(". ")[0].rstrip("."), item.file) for item in found]
    document = {"configs": [{**asdict(item), "file": str(item.file)} for item in found]}
    emit(document, as_json=as_json, text=lambda: print_table(("name", "kind", "about", "file"), rows))


def _document(loaded: Loaded, origin: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"settings": to_stated_dict(loaded.settings), "chosen": list(loaded.choices.reasons)}
    return {**document, "origins": dict(loaded.origins)} if origin else document


def _print(loaded: Loaded, origin: bool) -> None:
    values = _leaves(to_stated_dict(loaded.settings))
    if origin:
        rows = [(path, value, _origin(loaded, path)) for path, value in values.items()]
        print_table(("setting", "value", "origin"), rows)
    else:
        print_table(("setting", "value"), list(values.items()))


def _origin(loaded: Loaded, path: str) -> str:
    return loaded.origins.get(path, "default")


def _leaves(tree: dict[str, Any]) -> dict[str, object]:
    """Dotted path -> printable value; options of components one by one, lists in one cell."""
    leaves: dict[str, object] = {}
    for section, body in tree.items():
        if not isinstance(body, dict):
            names = [item["name"] if isinstance(item, dict) else str(item) for item in body]
            leaves[section] = ", ".join(names) or None
            continue
        for field, value in body.items():
            if field == "options":
                leaves |= {f"{section}.options.{key}": masked(option, key) for key, option in value.items()}
            else:
                leaves[f"{section}.{field}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return leaves
