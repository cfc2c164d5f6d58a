"""All layers together: defaults < profile < file < .env < environment < flags, each value with its origin."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.settings import sources
from finqa_cli.settings.auto import Choices, choose, facts
from finqa_cli.settings.layers import CHOICES, SHOW, Layer, Value, flatten, merge, nest
from finqa_cli.settings.public import without_masks
from finqa_cli.settings.schema import AUTO, EMBEDDED, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Resolved settings: no `auto` is left in them.

    Attributes:
        origins: Dotted path -> the layer that set it, such as `default`, `file finqa.toml`, `environment LORA_RANK`.
        choices: Which backends were chosen by what this machine has, and why.
    """

    settings: Settings
    origins: Mapping[str, str]
    choices: Choices


def load_settings(
    *,
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    registered: Collection[tuple[str, str]] = (),
    base: Mapping[str, Any] | None = None,
) -> Loaded:
    """Reads all layers and resolves what is `auto`.

    Args:
        flags: Dotted path -> value of the typed flags; None means not given.
        file: The file of `--config`; without it ./finqa.toml is read when it is there.
        assignments: The `section.key=value` texts of `--set`.
        registered: (kind, name) of every registered component; backends that are not among them are not chosen.
        base: Settings of an earlier run, as `to_public_dict` wrote them: a layer below the file.

    Raises:
        ConfigError: A layer has an unknown key or a wrong value; the message says which layer.
    """
    dotenv = sources.dotenv_variables()
    given = [
        flatten(without_masks(base or {}), "earlier run"),
        sources.file_layer(file),
        sources.variables_layer(dotenv, ".env"),
        sources.variables_layer(_environment(dotenv), "environment"),
        sources.flags_layer(flags or {}),
        sources.assignments_layer(assignments),
    ]
    layers = [_defaults(), *given]
    wanted = merge(layers)
    choices = choose(
        facts(registered),
        model=str(wanted["model.name"].raw),
        engine=str(wanted["engine.name"].raw),
        sandbox=str(wanted["sandbox.name"].raw),
    )
    if choices.model == EMBEDDED:
        layers.insert(1, embedded_profile())
    merged = merge(layers) | _chosen(wanted, choices)
    return Loaded(
        settings=_validated(merged),
        origins={path: value.origin for path, value in sorted(merged.items())},
        choices=choices,
    )


def embedded_profile() -> Layer:
    """The settings that suit the embedded policy on two processor cores."""
    text = files("finqa_cli.settings").joinpath("profiles/embedded.toml").read_text(encoding="utf-8")
    return flatten(tomllib.loads(text), "profile embedded")


def _environment(dotenv: Mapping[str, str]) -> dict[str, str]:
    """The environment proper: what `.env` has just put there keeps `.env` as its origin."""
    return {name: text for name, text in os.environ.items() if dotenv.get(name) != text}


def _defaults() -> Layer:
    layer: Layer = {}
    for section, model in Settings():
        if section in CHOICES:
            layer[f"{section}.name"] = Value(model.name, "default")
        elif section == "trackers":
            layer[section] = Value(model, "default")
        else:
            layer |= {f"{section}.{field}": Value(value, "default") for field, value in model}
    return layer


def _chosen(wanted: Layer, choices: Choices) -> Layer:
    names = {"model.name": choices.model, "engine.name": choices.engine, "sandbox.name": choices.sandbox}
    return {path: Value(name, "auto") for path, name in names.items() if wanted[path].raw == AUTO}


def _validated(merged: Layer) -> Settings:
    try:
        return Settings.model_validate(nest(merged))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        path = max((known for known in merged if place.startswith(known)), key=len, default="")
        raise _wrong_value(path or place, first["msg"], merged.get(path)) from error


def _wrong_value(path: str, reason: str, value: Value | None) -> ConfigError:
    reason = reason.removeprefix("Value error, ")
    if value is None:
        return ConfigError(f"{path}: {reason}.", remedy=SHOW)
    kind, _, name = value.origin.partition(" ")
    remedy = f"unset {name}, or give it a valid value" if kind == "environment" else SHOW
    return ConfigError(f"{path} = {value.raw!r} ({value.origin}): {reason}.", remedy=remedy)
