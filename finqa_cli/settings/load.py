"""Settings from all layers and from records: defaults < profile < files < .env < environment < flags.

Each value keeps its origin. `to_public_dict` writes settings into run folders, `from_public_dict` reads them back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.masking import MASK, mask_text, masked
from finqa_cli.placement.placement_types import Placement
from finqa_cli.settings.backend_choice import Choices, choose, facts
from finqa_cli.settings.layers import (
    CHOICES,
    SHOW,
    Layer,
    LayeredSettings,
    Value,
    applicable,
    arguments_layer,
    assignments_layer,
    dotenv_variables,
    fix_at,
    flags_layer,
    flatten,
    nest,
    variables_layer,
    winners,
    with_types,
)
from finqa_cli.settings.learning_rates import SFT_RATES, TRAIN_RATES, rate_for
from finqa_cli.settings.recorded_versions import from_record, removed_profile, with_versions
from finqa_cli.settings.schema import AUTO, DECLARATIONS, EMBEDDED, PLACED, Settings, is_embedded
from finqa_cli.settings.secret_values import refuse_secrets, shown
from finqa_cli.settings.settings_files import file_layers, read_document

DEFAULT_FILE = Path("finqa.toml")

BEFORE_THERE_WERE = {"train": {"max_staleness": 0}}
"""Values for recorded runs from before a setting existed, if its default changes what such a run does."""

OptionsOf = Callable[[str, str], type[BaseModel] | None]

_LONGEST_SHOWN = 200
"""Most characters of a wrong value that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings of all layers, with model, engine and sandbox resolved: these are not `auto`.

    Attributes:
        settings: The settings.
        origins: Dotted path -> the layer that set it: `default`, `file finqa.toml:3`, `environment LORA_RANK`.
        choices: The backends that were chosen for this machine, and why.
        undecided: Settings of `PLACED` that no layer sets, or that the last layer sets to `auto`; they have their
            default values until the placement plan replaces these.
        plan: Where engine and learner run; None if the command runs neither.
        notes: What a user should know about the files; each is a line.
    """

    settings: Settings
    origins: Mapping[str, str]
    choices: Choices
    undecided: frozenset[str] = frozenset(PLACED)
    plan: Placement | None = None
    notes: tuple[str, ...] = ()


def load_settings(
    *,
    flags: Mapping[str, Any] | None = None,
    typed: Mapping[str, str] = MappingProxyType({}),
    files: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    arguments: Sequence[tuple[str, str, Any]] = (),
    registered: Collection[tuple[str, str]] = (),
    modelless: Collection[str] = (),
    policies: Mapping[str, str] = MappingProxyType({}),
    rates: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    options_of: OptionsOf = lambda kind, name: None,
    assume_cuda: bool = False,
) -> Loaded:
    """Read all layers and choose the backends that are `auto`.

    Args:
        flags: Dotted path -> value; None: not given.
        typed: Dotted path -> flag as it is written, for the flags that the user typed. `--set` must not set these.
        files: Files and names of `--config`; later ones override earlier ones. If empty, ./finqa.toml is read if it
            exists.
        assignments: The `section.key=value` texts of `--set`.
        arguments: Dotted path, name as written, and value of each argument of a Python function; the highest layer.
        registered: (kind, name) of every registered component; only these are chosen.
        modelless: Names of the engines that use no model; the choice of a model is not reported for them.
        policies: Name of an environment -> its own small policy.
        rates: Name of a method -> its own default learning rates, for an adapter and for all weights.
        options_of: Function from kind and name of a component to the class of its options; None: it has none, or it is
            not known. A text for an option is read as its type wants it.
        assume_cuda: Choose as on a machine with CUDA devices and vLLM.

    Raises:
        ConfigError: A layer has an unknown key, a wrong value or a secret, or two variables set one setting; the
            message names the layer.
        UsageError: A typed flag and `--set` give the same setting.
    """
    assigned = assignments_layer(assignments)
    for path in assigned.keys() & typed.keys():
        raise UsageError(f"{typed[path]} and --set {path}=... both set {path}.", remedy="give one of them")
    notes: list[str] = []
    given = [*_files_and_variables(files, notes), flags_layer(flags or {}), assigned, arguments_layer(arguments)]
    refuse_secrets(given)
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
    chosen = {"model.name": choices.model, "engine.name": choices.engine, "sandbox.name": choices.sandbox}
    found = winners(layers)
    layers.append({path: Value(name, "auto") for path, name in chosen.items() if found[path].raw == AUTO})
    found = winners(layers)
    layers = [with_types(layer, lambda kind: options_of(kind, str(found[f"{kind}.name"].raw))) for layer in layers]
    found = winners(layers)
    layers.append(_rates(found, rates))
    undecided = frozenset(path for path in PLACED if found[path].origin == "default" or found[path].raw == AUTO)
    defaults = _defaults()
    layers.append({path: Value(defaults[path].raw, "auto") for path in undecided})
    return Loaded(
        settings=_merged(layers),
        origins={path: value.origin for path, value in sorted(winners(layers).items())},
        choices=choices,
        undecided=undecided,
        notes=tuple(notes),
    )


def _files_and_variables(files: Sequence[str | Path], notes: list[str]) -> list[Layer]:
    """Return the layers below the flags, lowest first; `notes` gets what a user should know about the files."""
    dotenv = dotenv_variables()
    # what `.env` has just put into the environment keeps `.env` as its origin
    own = {name: text for name, text in os.environ.items() if dotenv.get(name) != text}
    read = file_layers(files or [file for file in (DEFAULT_FILE,) if file.is_file()], notes)
    return [*read, variables_layer(dotenv, ".env"), variables_layer(own, "environment")]


def _rates(found: Mapping[str, Value], rates: Mapping[str, tuple[float, float]]) -> Layer:
    """Return the learning rates that no layer sets, by what is trained. They are still defaults."""
    rank = str(found["lora.rank"].raw).strip()
    whole = rank.isdecimal() and not int(rank)  # what is no number is refused when the layers are merged
    wanted = {
        "sft.learning_rate": SFT_RATES,
        "train.learning_rate": rates.get(str(found["optimizer.name"].raw), TRAIN_RATES),
    }
    return {
        path: Value(rate_for(0 if whole else 1, both), "default")
        for path, both in wanted.items()
        if found[path].raw is None
    }


def _profiles(policy: str, *, plays: bool, own_data: bool) -> list[Layer]:
    """Return the profiles of a small policy, for two CPU cores: the profile `embedded`, then its own if there is one.

    Args:
        policy: Name of the model; only small policies have profiles.
        plays: The policy plays. If an expert plays instead, the policy's own profile, which may change the tasks, is
            left out.
        own_data: The tasks come from the user's file, so options for the embedded tasks do not apply.
    """
    if not is_embedded(policy):
        return []
    folder = resources.files("finqa_cli.settings") / "profiles"
    files = {name: folder / f"{name}.toml" for name in dict.fromkeys((EMBEDDED, policy if plays else EMBEDDED))}
    profiles = [
        flatten(read_document(Path(str(file))).tree, lambda _, name=name: f"profile {name}")  # type: ignore[misc]
        for name, file in files.items()
        if file.is_file()
    ]
    return [
        {path: value for path, value in layer.items() if not (own_data and path.startswith("environment.options."))}
        for layer in profiles
    ]


def profile_values(policy: str) -> dict[str, list[Any]]:
    """Return the values that the profiles of a small policy set, by dotted path; empty for other models."""
    values: dict[str, list[Any]] = {}
    for layer in _profiles(policy, plays=True, own_data=False):
        for path, value in layer.items():
            values.setdefault(path, []).append(value.raw)
    return values


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


class _Merged(LayeredSettings):
    """The settings that pydantic-settings merges from `layers`, its only argument."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        layers: Sequence[Layer] = init_settings.init_kwargs["layers"]
        return tuple(InitSettingsSource(settings_cls, init_kwargs=nest(layer)) for layer in reversed(layers))


def _merged(layers: Sequence[Layer]) -> Settings:
    """Return the settings that pydantic-settings merges from the layers; a later one wins over an earlier one."""
    given: dict[str, Any] = {"layers": layers}
    try:
        return Settings.model_validate(_Merged(**given).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        known = winners(layers)
        place = ".".join(str(part) for part in first["loc"])
        path = max((setting for setting in known if place.startswith(setting)), key=len, default="")
        raise _wrong_value(path or place, first["msg"], known.get(path)) from error


def _wrong_value(path: str, reason: str, value: Value | None) -> ConfigError:
    reason = reason.removeprefix("Value error, ")
    if value is None:
        return ConfigError(f"{path}: {reason}.", remedy="change or leave out one of the settings that it names")
    where = fix_at(value.origin)
    remedy = f"{where}, or give it a valid value" if where else _default_of(path, value.origin)
    given = shown(path, value.raw)
    if len(given) > _LONGEST_SHOWN:
        given = f"{given[:_LONGEST_SHOWN]}... ({len(given):,} characters)"
    return ConfigError(f"{path} = {given} ({value.origin}): {mask_text(reason)}.", remedy=remedy)


def _default_of(path: str, origin: str) -> str:
    """Return a remedy for a wrong value of a flag or `--set`: the flag, or `--set`, with the default value."""
    declared = DECLARATIONS.get(path)
    default = declared.default if declared else None
    if declared is None or isinstance(default, bool) or not isinstance(default, (int, float, str)) or default == "":
        return f"{SHOW} lists the values"
    flag = declared.about.flags.split("/")[0].split(" ")[0] if origin == "flag" else ""
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{flag} {text}" if flag else f"--set {path}={text}"


def to_public_dict(settings: Settings) -> dict[str, Any]:
    """Return a JSON-ready mapping of all settings with secrets masked, for the run folder."""
    public: dict[str, Any] = masked(settings.model_dump(mode="json"))
    return with_versions(public)


def to_stated_dict(settings: Settings) -> dict[str, Any]:
    """Return `to_public_dict` with `auto` for the settings that the placement plan decided, without `run.placed`."""
    public = to_public_dict(settings)
    for path in public["run"].pop("placed"):
        section, _, field = path.partition(".")
        if field.startswith("options."):
            public[section]["options"].pop(field.removeprefix("options."), None)
        else:
            public[section][field] = AUTO
    return public


def from_public_dict(public: Mapping[str, Any]) -> Settings:
    """Return the settings that `to_public_dict` described.

    Masked options are omitted, so their defaults apply. A run from before a setting existed keeps its behaviour.

    Raises:
        ConfigError: A key or value is not a setting of this version, or the record names a removed grading profile.
    """
    recorded = from_record(_completed(_without_masks(public)))
    if removed := removed_profile(recorded):
        raise ConfigError(
            f"{removed[0]} = {removed[1]} is recorded: this version of finqa has no such grading profile any more. "
            "Results that were graded by it can still be shown and compared.",
            remedy="finqa eval --rescore RUN --grader strict, which grades an evaluation again",
        )
    try:
        return Settings.model_validate(recorded)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"The recorded settings do not fit this version: {place}: {first['msg']}.") from error


def _completed(public: Any) -> Any:
    """Add `BEFORE_THERE_WERE` to the recorded sections. Before `eval.seed` existed, the run's seed was used for it."""
    before: dict[str, dict[str, Any]] = {**BEFORE_THERE_WERE}
    if isinstance(train := public.get("train"), Mapping) and "seed" in train:
        before["eval"] = {"seed": train["seed"]}
    recorded = {name: body for name, body in before.items() if isinstance(public.get(name), Mapping)}
    return {**public, **{name: {**body, **public[name]} for name, body in recorded.items()}}


def _without_masks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_masks(item) for key, item in value.items() if item != MASK}
    return [_without_masks(item) for item in value] if isinstance(value, (list, tuple)) else value
