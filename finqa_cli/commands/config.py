"""`finqa config`: the resolved settings and where each comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp, offers
from finqa_cli.commands.shared.output import emit, print_table
from finqa_cli.masking import masked
from finqa_cli.settings import AUTO, Loaded, list_shipped, to_stated_dict

app = CommandApp("Show the resolved settings and where each comes from.", epilog=EXIT_CODES)


@app.command()
@offers("model.name", "engine.name", "sandbox.name", general=("config", "assign", "as_json"))
def show(
    line: CommandLine,
    origin: Annotated[bool, typer.Option("--origin", help="Also show the layer that set each value.")] = False,
) -> None:
    """Print every setting as a run would see it: defaults < profile < files < .env < environment < flags.

    Secrets are masked. Exit codes: 0 ok, 78 a setting is unknown or wrong.

    Example: finqa config show --origin --set train.group_size=8
    """
    loaded = line.load(quiet=True)
    for note in loaded.notes:
        line.note(f"warning: {note}")
    emit(_document(loaded, origin), as_json=line.as_json, text=lambda: _print(loaded, origin))


@app.command("list")
def list_files(as_json: AsJson = False) -> None:
    """List the settings that ship with finqa, which --config takes by name: model tiers, optimizer tiers, experiments.

    A model tier and an optimizer tier go together, any with any. Exit codes: 0 ok.

    Example: finqa train --config qwen3-4b --config grpo
    """
    found = list_shipped()
    rows = [(item.name, item.kind, item.about.partition(". ")[0].rstrip("."), item.file) for item in found]
    document = {"configs": [{**asdict(item), "file": str(item.file)} for item in found]}
    emit(document, as_json=as_json, text=lambda: print_table(("name", "kind", "about", "file"), rows))


def _document(loaded: Loaded, origin: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "settings": to_stated_dict(loaded.settings),
        "chosen": list(loaded.choices.reasons.values()),
    }
    return {**document, "origins": dict(loaded.origins)} if origin else document


def _print(loaded: Loaded, origin: bool) -> None:
    values = _leaves(to_stated_dict(loaded.settings))
    if origin:
        rows = [(path, value, _origin(loaded, path)) for path, value in values.items()]
        print_table(("setting", "value", "origin"), rows)
    else:
        print_table(("setting", "value"), list(values.items()))


def _origin(loaded: Loaded, path: str) -> str:
    """Return the layer that set a value. For an option that is a mapping, return all layers that set its members."""
    found = {each: origin for each, origin in loaded.origins.items() if each == path or each.startswith(f"{path}.")}
    shown = ", ".join(dict.fromkeys(found.values())) or "default"
    _, opening, reason = loaded.choices.reasons.get(path.removesuffix(".name"), "").partition(" (")
    return f"{shown} ({reason}" if opening and shown == AUTO else shown


def _leaves(tree: dict[str, Any]) -> dict[str, object]:
    """Return dotted path -> printable value. Each option of a component has its own path; a list is one value."""
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
