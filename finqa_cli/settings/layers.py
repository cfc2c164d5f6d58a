"""One layer of settings: dotted paths to values, each with where it came from.

Layers are flat, so that the origin of every setting falls out of them; pydantic-settings merges them.
"""

from __future__ import annotations

import difflib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.settings.schema import AUTO, Choice, Settings

CHOICES = tuple(name for name, field in Settings.model_fields.items() if field.annotation is Choice)
SHOW = "finqa config show --origin"


@dataclass(frozen=True, slots=True)
class Value:
    """A raw value and the layer that set it, such as `environment LORA_RANK`."""

    raw: Any
    origin: str


Layer = dict[str, Value]

Place = Callable[[str], str]
"""From a dotted path to where it is set: what `Value.origin` says."""


def section_fields() -> dict[str, tuple[str, ...]]:
    """Settable names by top-level key; `options` of a choice takes any further key."""
    fields: dict[str, tuple[str, ...]] = {}
    for name, field in Settings.model_fields.items():
        model = field.annotation
        fields[name] = tuple(getattr(model, "model_fields", ()))
    return fields


def known_paths() -> tuple[str, ...]:
    """Every dotted path that can be set; component options stand as `kind.options.KEY`."""
    paths: list[str] = []
    for section, fields in section_fields().items():
        tails = ("name", "options.KEY") if section in CHOICES else fields
        paths += [f"{section}.{tail}" for tail in tails] or [section]
    return tuple(paths)


def canonical(path: str, origin: str) -> str:
    """The full dotted path; `engine` is short for `engine.name`.

    Raises:
        ConfigError: There is no such setting; the message names the nearest one.
    """
    section, _, field = path.partition(".")
    fields = section_fields()
    if section in CHOICES:
        if field in ("", "name"):
            return f"{section}.name"
        head, _, key = field.partition(".")
        if head == "options" and key and "." not in key:
            return path
    elif section in fields and (field in fields[section] or not (field or fields[section])):
        return path
    raise _unknown(path, origin)


def flatten(tree: Mapping[str, Any], place: Place) -> Layer:
    """A nested mapping, as a file holds it, as a layer.

    Raises:
        ConfigError: A key is unknown, or a section is not a table.
    """
    layer: Layer = {}
    for section, body in tree.items():
        if section not in section_fields():
            raise _unknown(section, place(section))
        if section in CHOICES and isinstance(body, str):
            layer[f"{section}.name"] = Value(body, place(section))
        elif section == "trackers":
            layer[section] = Value(body, place(section))
        elif not isinstance(body, Mapping):
            origin = place(section)
            raise ConfigError(f"{section!r} must be a table of settings, not {body!r} ({origin}).", remedy=SHOW)
        else:
            layer |= _flatten_section(section, body, place)
    return layer


def applicable(layers: Sequence[Layer]) -> list[Layer]:
    """The layers without the options that were meant for a component which a later layer replaces by another."""
    kept: list[Layer] = []
    for layer in layers:
        for kind in CHOICES:
            path = f"{kind}.name"
            before = winners(kept).get(path)
            if path in layer and before is not None and before.raw not in (AUTO, layer[path].raw):
                options = f"{kind}.options."
                kept = [{key: value for key, value in low.items() if not key.startswith(options)} for low in kept]
        kept.append(layer)
    return kept


def winners(layers: Sequence[Layer]) -> Mapping[str, Value]:
    """For each path the value of the last layer that sets it: where every setting comes from."""
    return ChainMap(*reversed(layers))


def nest(layer: Layer) -> dict[str, Any]:
    """A layer as the nested mapping that `Settings` validates."""
    tree: dict[str, Any] = {}
    for path, value in layer.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value.raw
    return tree


def _flatten_section(section: str, body: Mapping[str, Any], place: Place) -> Layer:
    layer: Layer = {}
    for field, value in body.items():
        path = f"{section}.{field}"
        if section in CHOICES and field == "options":
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path} must be a table of options, not {value!r} ({place(path)}).", remedy=SHOW)
            options = ((f"{path}.{key}", option) for key, option in value.items())
            layer |= {name: Value(option, place(name)) for name, option in options}
        else:
            layer[canonical(path, place(path))] = Value(value, place(path))
    return layer


def _unknown(path: str, origin: str) -> ConfigError:
    return ConfigError(f"There is no setting {path!r} ({origin}).{_nearest(path)}", remedy=SHOW)


def _nearest(path: str) -> str:
    known = [*known_paths(), *section_fields()]
    nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not nearest:  # the right name in the wrong section is the commonest mistake of all
        leaf = path.rpartition(".")[2]
        nearest = [known_path for known_path in known if known_path.rpartition(".")[2] == leaf][:1]
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
