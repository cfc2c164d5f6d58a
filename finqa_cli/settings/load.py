"""All layers together: defaults < profile < files < .env < environment < flags, each value with its origin."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from finqa_cli.errors import ConfigError
from finqa_cli.placement.placement_types import Placement
from finqa_cli.settings import sources
from finqa_cli.settings.backend_choice import Choices, choose, facts
from finqa_cli.settings.layers import CHOICES, SHOW, Layer, Value, applicable, flatten, nest, winners
from finqa_cli.settings.schema import AUTO, EMBEDDED, PLACED, Settings, is_embedded
from finqa_cli.settings.tiers import file_layers

DEFAULT_FILE = Path("finqa.toml")
_TASK_OPTIONS = "environment.options."


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Resolved settings: no `auto` is left in them.

    Attributes:
        origins: Dotted path -> the layer that set it: `default`, `file finqa.toml:3`, `environment LORA_RANK`.
        choices: Which backends were chosen by what this machine has, and why.
        plan: Where engine and learner run; None where the command runs neither.
        undecided: Those of `PLACED` that no layer sets, or that the last one sets to `auto`: their values are defaults.
    """

    settings: Settings
    origins: Mapping[str, str]
    choices: Choices
    undecided: frozenset[str] = frozenset(PLACED)
    plan: Placement | None = None


def load_settings(
    *,
    flags: Mapping[str, Any] | None = None,
    files: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    registered: Collection[tuple[str, str]] = (),
    modelless: Collection[str] = (),
    policies: Mapping[str, str] = MappingProxyType({}),
    assume_cuda: bool = False,
) -> Loaded:
    """Reads all layers and resolves what is `auto`.

    Args:
        flags: Dotted path -> value of the typed flags; None means not given.
        files: The files and names of `--config`, later ones over earlier ones; without any ./finqa.toml is read when it
            is there.
        assignments: The `section.key=value` texts of `--set`.
        registered: (kind, name) of every registered component; backends that are not among them are not chosen.
        modelless: Names of the engines that take no model, so that none is announced for them.
        policies: The small policy of each environment that has one of its own.
        assume_cuda: Choose as on a machine with CUDA devices and vLLM.

    Raises:
        ConfigError: A layer has an unknown key or a wrong value; the message says which layer.
    """
    dotenv = sources.dotenv_variables()
    given = [
        *file_layers(files or [file for file in (DEFAULT_FILE,) if file.is_file()]),
        sources.variables_layer(dotenv, ".env"),
        sources.variables_layer(_environment(dotenv), "environment"),
        sources.flags_layer(flags or {}),
        sources.assignments_layer(assignments),
    ]
    wanted = winners([_defaults(), *given])
    here = facts(
        registered,
        modelless,
        policy=policies.get(str(wanted["environment.name"].raw), EMBEDDED),
        home=Path(str(wanted["data.home"].raw)),
    )
    if assume_cuda:
        here = replace(here, cuda=True, vllm=("engine", "vllm") in registered)
    choices = choose(
        here,
        model=str(wanted["model.name"].raw),
        engine=str(wanted["engine.name"].raw),
        sandbox=str(wanted["sandbox.name"].raw),
    )
    plays = choices.engine not in modelless
    profiles = _profiles(choices.model, plays=plays, own_data=wanted["data.path"].raw is not None)
    layers = applicable([_defaults(), *profiles, *given])
    layers.append(_chosen(winners(layers), choices))
    found = winners(layers)
    undecided = frozenset(path for path in PLACED if found[path].origin == "default" or found[path].raw == AUTO)
    defaults = _defaults()
    layers.append({path: Value(defaults[path].raw, "auto") for path in undecided})
    return Loaded(
        settings=_merged(layers),
        origins={path: value.origin for path, value in sorted(winners(layers).items())},
        choices=choices,
        undecided=undecided,
    )


def _profiles(policy: str, *, plays: bool, own_data: bool) -> list[Layer]:
    """What suits a small policy on two processor cores: the settings of all of them, then its own where it has some.

    Args:
        policy: Name of the model; none but the small ones have profiles.
        plays: It is what plays; beside an expert the tasks stay as they are.
        own_data: The tasks come from a file, so that options for the embedded ones do not apply.
    """
    if not is_embedded(policy):
        return []
    folder = resources.files("finqa_cli.settings") / "profiles"
    shipped = {file.name for file in folder.iterdir()}
    return [
        _profile(name, (folder / f"{name}.toml").read_text(encoding="utf-8"), own_data=own_data)
        for name in dict.fromkeys((EMBEDDED, policy if plays else EMBEDDED))
        if f"{name}.toml" in shipped
    ]


def _profile(name: str, text: str, *, own_data: bool) -> Layer:
    layer = flatten(tomllib.loads(text), lambda path: f"profile {name}")
    return {path: value for path, value in layer.items() if not (own_data and path.startswith(_TASK_OPTIONS))}


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


def _chosen(wanted: Mapping[str, Value], choices: Choices) -> Layer:
    """What this machine decides where nobody else did."""
    names = {"model.name": choices.model, "engine.name": choices.engine, "sandbox.name": choices.sandbox}
    return {path: Value(name, "auto") for path, name in names.items() if wanted[path].raw == AUTO}


class _LayerSource(PydanticBaseSettingsSource):
    """One layer as pydantic-settings takes it."""

    def __init__(self, settings_class: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_class)
        self._tree = nest(layer)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._tree.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._tree


def _merged(layers: Sequence[Layer]) -> Settings:
    """The settings that pydantic-settings makes of the layers; a later one wins over an earlier one."""

    class Layered(Settings, BaseSettings):  # type: ignore[misc]  # both declare model_config, of compatible content
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, layer) for layer in reversed(layers))

    try:
        return Settings.model_validate(Layered().model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        known = winners(layers)
        place = ".".join(str(part) for part in first["loc"])
        path = max((setting for setting in known if place.startswith(setting)), key=len, default="")
        raise _wrong_value(path or place, first["msg"], known.get(path)) from error


def _wrong_value(path: str, reason: str, value: Value | None) -> ConfigError:
    reason = reason.removeprefix("Value error, ")
    if value is None:
        return ConfigError(f"{path}: {reason}.", remedy=SHOW)
    kind, _, name = value.origin.partition(" ")
    remedy = f"unset {name}, or give it a valid value" if kind == "environment" else SHOW
    return ConfigError(f"{path} = {value.raw!r} ({value.origin}): {reason}.", remedy=remedy)
