"""The index of completions: commands, their options, and the values of options."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from finqa_cli import app as application
from finqa_cli.commands.shared.command_line import declaration_of
from finqa_cli.errors import ConfigError
from finqa_cli.extend import missing_requirements, registry
from finqa_cli.settings.schema import DECLARATIONS, KINDS

RUNS = frozenset({"target", "run", "runs", "resume", "rescore", "source", "baseline", "compare_with"})
"""Parameters that name a run."""


def index() -> dict[str, Any]:
    """Return the index: `commands` by their full name, and `lists` of names with their help."""
    kinds = {component.kind for component in registry().components()}
    lists: dict[str, dict[str, str]] = {
        kind: {part.name: part.summary for part in registry().components(kind)} for kind in sorted(kinds)
    }
    lists["settings"] = {path: each.about.help for path, each in DECLARATIONS.items()} | dict(_options())
    configs = Path(str(files("finqa_cli"))) / "configs"
    lists["configs"] = {
        file.stem: file.parent.name for file in sorted(configs.glob("*/*.toml"), key=lambda file: file.stem)
    }
    root = {"commands": {name: summary for name, (_, summary) in application.COMMANDS.items()}}
    commands: dict[str, Any] = {"": root}
    for name in application.COMMANDS:
        loaded = application.LazyGroup(name="finqa").get_command(None, name)
        commands |= dict(_describe(name, loaded))
    return {"commands": commands, "lists": lists}


def _options() -> Iterator[tuple[str, str]]:
    """Yield the options of all components that are usable here, by their path, with the components that have them."""
    having: dict[str, list[str]] = {}
    for component in registry().components():
        if f"{component.kind}.name" not in DECLARATIONS:
            continue
        try:
            options = None if missing_requirements(component) else registry().config_class(component)
        except (ConfigError, ImportError):
            continue  # `finqa plugins` says what is wrong with it
        for option in options.model_fields if options is not None else ():
            having.setdefault(f"{component.kind}.options.{option}", []).append(component.name)
    for path, names in having.items():
        yield path, f"option of {', '.join(names)}"


def _describe(name: str, command: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if inner := getattr(command, "commands", None):
        yield name, {"commands": {each: _first_line(part.help) for each, part in sorted(inner.items())}}
        for each, part in inner.items():
            yield from _describe(f"{name} {each}", part)
        return
    options = [
        {
            "flags": [*parameter.opts, *parameter.secondary_opts],
            "help": _first_line(parameter.help),
            "kind": _kind(parameter),
        }
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    kinds = [kind for parameter in arguments if (kind := _kind(parameter)) != "text"]
    named = [[*_PLAYERS]] if any(parameter.name == "target" for parameter in arguments) else []
    yield name, {"options": options, "arguments": [*kinds, *named]}


def _kind(parameter: Any) -> Any:
    """Return how a value is completed: a list of choices, the name of a list, `runs`, `text` (not at all), or `switch`
    (there is no value).
    """
    if getattr(parameter, "is_flag", False):
        return "switch"
    if choices := _choices(parameter.type_descriptor.annotation):
        return choices
    name = str(parameter.name)
    if (declaration := declaration_of(name)) is not None:
        if declaration.path in _NAMES:
            return _NAMES[declaration.path]
        kind = declaration.path.removesuffix(".name")
        return KINDS.get(kind, kind) if kind in _COMPONENTS else "text"
    named = {"config": "configs", "assign": "settings"}
    return named.get(name, "runs" if name in RUNS else "text")


_NAMES = {"data.snapshot": "snapshots", "data.eval_split": ["train", "dev", "test"]}
"""Settings whose values are names of data."""

_PLAYERS = ("embedded", "scripted")
_COMPONENTS = ("environment", "engine", "sandbox", "optimizer", "reward", "grader", "learner", "codec", "trackers")


def _choices(annotation: Any) -> list[str]:
    """Return the values of a Literal or an Enum; for `X | None`, those of X. Empty for other annotations."""
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [value for part in typing.get_args(annotation) for value in _choices(part)]


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
