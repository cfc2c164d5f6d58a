"""Layers of settings: each maps dotted paths to values with their origins.

pydantic-settings reads and merges the layers. Layers are flat here. So each value keeps its origin, and an error about
a name that is set twice or does not exist can name the place.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, DotEnvSettingsSource, EnvSettingsSource, SettingsConfigDict

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.settings.declarations import PREFIX
from finqa_cli.settings.option_values import read_option, split_list
from finqa_cli.settings.schema import AUTO, BARE_NAMES, DECLARATIONS, Choice, Settings
from finqa_cli.types.model_providers import PROVIDERS

CHOICES = tuple(name for name, field in Settings.model_fields.items() if field.annotation is Choice)
SHOW = "finqa config show --origin"

_PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")
_ESCAPED = {'"': '\\"', "\\": "\\\\"}

DOTENV_FILE = Path(".env")
NEVER_FROM_DOTENV = (
    *sorted(each.url_variable for each in PROVIDERS.values() if each.url_variable),
    "CWSANDBOX_BASE_URL",
    "DAYTONA_API_URL",
    "DAYTONA_SERVER_URL",
    "FINQA_ENGINE__OPTIONS__BASE_URL",
    "HF_ENDPOINT",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "WANDB_BASE_URL",
)
"""Variables that `.env` must not set, in upper or lower case. They set the address of a service, or the certificates
that are trusted: a `.env` file in a downloaded folder could use them to send the user's keys to another host."""


class LayeredSettings(Settings, BaseSettings):
    """The settings as the sources of pydantic-settings read them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        case_sensitive=True,
    )


@dataclass(frozen=True, slots=True)
class Value:
    """A raw value and the layer that set it, such as `environment LORA_RANK`.

    Attributes:
        raw: The value; a text that `--set` or a variable gives is read as TOML.
        origin: The layer.
        text: The text as it was typed; None if the value was not given as text.
    """

    raw: Any
    origin: str
    text: str | None = None


Layer = dict[str, Value]

Place = Callable[[str], str]
"""Function from a dotted path to the place where it is set, in the form of `Value.origin`."""


def section_fields() -> dict[str, tuple[str, ...]]:
    """Return the settable names by top-level key. Below `options` of a choice, any key is allowed."""
    return {name: tuple(getattr(field.annotation, "model_fields", ())) for name, field in Settings.model_fields.items()}


def known_paths() -> tuple[str, ...]:
    """Return every dotted path that can be set; component options are written `kind.options.KEY`."""
    paths: list[str] = []
    for section, fields in section_fields().items():
        tails = ("name", "options.KEY") if section in CHOICES else fields
        paths += [f"{section}.{tail}" for tail in tails] or [section]
    return tuple(paths)


def canonical(path: str, origin: str) -> str:
    """Return the full dotted path; `engine` is short for `engine.name`.

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
    """Convert a nested mapping, as the sources read it, to a layer.

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
            reason = f"{section!r} must be a table of settings, not {body!r} ({origin})."
            raise ConfigError(reason, remedy=fix_at(origin) or SHOW)
        else:
            for field, value in body.items():
                layer |= _flatten_field(section, field, value, place)
    return layer


def _flatten_field(section: str, field: str, value: Any, place: Place) -> Layer:
    path = f"{section}.{field}"
    if section not in CHOICES or field != "options":
        return {canonical(path, place(path)): Value(value, place(path))}
    if not isinstance(value, Mapping):
        reason = f"{path} must be a table of options, not {value!r} ({place(path)})."
        raise ConfigError(reason, remedy=fix_at(place(path)) or SHOW)
    return {f"{path}.{key}": Value(option, place(f"{path}.{key}")) for key, option in value.items()}


def applicable(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers without the options of a component that a later layer replaces by another component."""
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
    """Return for each path the value of the last layer that sets it."""
    return ChainMap(*reversed(layers))


def nest(layer: Layer) -> dict[str, Any]:
    """Return a layer as the nested mapping that `Settings` validates."""
    tree: dict[str, Any] = {}
    for path, value in layer.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value.raw
    return tree


class _VariableSource(EnvSettingsSource):
    """The settings among environment variables, with short names such as LORA_RANK or as FINQA_SECTION__FIELD.

    Attributes:
        names: Dotted path -> name of the variable that sets it.
    """

    def __init__(self, variables: Mapping[str, str], source: str) -> None:
        """Select the variables that are settings; an empty value counts as not set.

        Raises:
            ConfigError: A FINQA_SECTION__FIELD variable names no setting, or two variables set the same one.
        """
        super().__init__(LayeredSettings)
        self.names: dict[str, str] = {}
        found: dict[str, str] = {}
        for name, text in sorted(variables.items()):
            path = variable_path(name, source) if text.strip() else None
            if path is None:
                continue
            if path in self.names:
                raise ConfigError(
                    f"{self.names[path]} and {name} both set {path} ({source}).",
                    remedy=f"unset {name}" if source == "environment" else f"remove {name} from {DOTENV_FILE}",
                )
            self.names[path] = name
            found[PREFIX + path.replace(".", "__")] = text.strip()
        self.env_vars = found

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Return the text itself, which `variables_layer` parses as `--set` does, instead of JSON."""
        return value

    def __call__(self) -> dict[str, Any]:
        """Return the settings as a tree of texts."""
        # the superclass looks for every setting, a fifth of the time of reading all layers
        return super().__call__() if self.names else {}


def variables_layer(variables: Mapping[str, str], source: str) -> Layer:
    """Return the layer of environment variables.

    Args:
        variables: All variables; those that are not settings are skipped.
        source: Where they come from: `environment` or `.env`.

    Raises:
        ConfigError: A FINQA_SECTION__FIELD variable names no setting, or two variables set the same one.
    """
    found = _VariableSource(variables, source)
    layer = flatten(found(), lambda path: f"{source} {found.names.get(path, path)}")
    return {path: Value(parse_text(path, value.raw), value.origin, value.raw) for path, value in layer.items()}


def variable_path(name: str, source: str) -> str | None:
    """Return the setting that an environment variable sets, or None when it is not a setting.

    Raises:
        ConfigError: A FINQA_SECTION__FIELD variable names no setting.
    """
    if path := BARE_NAMES.get(name):
        return path
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX).lower()
    if "__" in rest:
        return canonical(rest.replace("__", "."), f"{source} {name}")
    if rest in (*CHOICES, "trackers"):
        return canonical(rest, source)
    if same := [path for path in known_paths() if path.rpartition(".")[2] == rest]:
        names = " or ".join(PREFIX + path.upper().replace(".", "__") for path in same)
        raise ConfigError(f"{name} ({source}) sets nothing. Did you mean {names}?", remedy=fix_at(f"{source} {name}"))
    return None


def dotenv_variables(file: Path = DOTENV_FILE) -> dict[str, str]:
    """Return the variables of `.env` that the environment does not set itself.

    Variables that are not settings (such as keys of services), and FINQA_HOME, are also put into the environment, where
    services read them. Other settings are not, so that their origin stays `.env`.

    Raises:
        ConfigError: The file cannot be read, or sets one of `NEVER_FROM_DOTENV`.
    """
    try:
        given = DotEnvSettingsSource(LayeredSettings, env_file=file).env_vars
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.", remedy=f"Save {file} as UTF-8 text.") from error
    for name, value in given.items():
        if name.upper() in NEVER_FROM_DOTENV and value and not os.environ.get(name):
            raise ConfigError(
                f"{file} sets {name}, which determines who receives your key; it can only be set in the environment.",
                remedy=f"remove it from {file}; if you trust the address: export {name}=...",
            )
    variables = {name: value for name, value in given.items() if value and not os.environ.get(name)}
    for name, value in variables.items():
        if variable_path(name, ".env") is None or name == "FINQA_HOME":
            os.environ[name] = value
    return variables


def flags_layer(flags: Mapping[str, Any]) -> Layer:
    """Return the layer of typed flags by dotted path; None means that the flag was not given."""
    return {canonical(path, "flag"): Value(value, "flag") for path, value in flags.items() if value is not None}


def arguments_layer(arguments: Sequence[tuple[str, str, Any]]) -> Layer:
    """Return the layer of the arguments of a function.

    Args:
        arguments: Dotted path, how the argument is written, and its value; None means that it is not given.

    Raises:
        ConfigError: There is no such setting.
        UsageError: One setting is given twice, for example by `engine` and `engine.name`.
    """
    layer: Layer = {}
    for path, name, value in arguments:
        if value is None:
            continue
        full = _assigned_path(path, f"argument {name}")
        if full in layer:
            other = layer[full].origin.removeprefix("argument ")
            raise UsageError(f"{other} and {name} both set {full}.", remedy="give one of them")
        layer[full] = Value(value, f"argument {name}")
    return layer


def assignments_layer(assignments: Sequence[str]) -> Layer:
    """Return the layer of `--set section.key=value`, with the value in TOML syntax or as plain text.

    Raises:
        UsageError: There is no `=`, or one setting is given twice, for example by `engine` and `engine.name`.
        ConfigError: The key is unknown.
    """
    layer: Layer = {}
    names: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set must be section.key=value, not {assignment!r}.", remedy=f"{SHOW} lists them")
        path = _assigned_path(name.strip(), "--set")
        if (other := names.setdefault(path, name.strip())) != name.strip():
            raise UsageError(f"--set {other} and --set {name.strip()} both set {path}.", remedy="give one of them")
        layer[path] = Value(parse_text(path, text.strip()), "--set", text.strip())
    for path, above in ((path, above) for path in layer for above in layer if path.startswith(f"{above}.")):
        raise UsageError(f"--set {above} and --set {path} both set {path}.", remedy="give one of them")
    return layer


def _assigned_path(name: str, origin: str) -> str:
    """Return the path that `--set` or an argument names; `kind.options.KEY.NAME` is a member of a mapping.

    Whether the option exists and is a mapping is checked later, with the component's other options.
    """
    head, *members = re.split(r"(?<=\.options)\.([^.]+)\.", name, maxsplit=1)
    if not members or not all(members[1].split(".")):
        return canonical(name, origin)
    return f"{canonical(f'{head}.{members[0]}', origin)}.{members[1]}"


def parse_text(path: str, text: str) -> Any:
    """Return the value of a text: quotes are optional, lists have commas or blanks. pydantic parses numbers."""
    value = _toml_value(text)
    if _is_list(path):
        return value if isinstance(value, list) else split_list(value if isinstance(value, str) else text)
    return value if ".options." in path or isinstance(value, str) else text


def assignment_text(path: str, value: Any) -> str:
    """Return the text of a value for `--set`: plain text if `--set` reads the same value from it, else TOML in ASCII.

    For a text setting and for an option, `parse_text` returns the same value from this text.
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and parse_text(path, value) in (value, [value]):
        return value
    return _to_toml(value)


def _to_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return f'"{"".join(_characters(value))}"'
    if isinstance(value, Mapping):
        members = (f"{_to_toml(str(key))} = {_to_toml(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(members) + "}"
    return "[" + ", ".join(_to_toml(item) for item in value) + "]"


def _characters(text: str) -> Iterator[str]:
    for character in text:
        code = ord(character)
        if character in _ESCAPED:
            yield _ESCAPED[character]
        elif 0x20 <= code < 0x7F:
            yield character
        else:
            yield f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def with_types(layer: Layer, model_of: Callable[[str], type[BaseModel] | None]) -> Layer:
    """Return a layer in which texts have the types of their settings: lists are split, and options are read.

    Args:
        layer: The layer.
        model_of: Function from a kind of component to the class of the options of the chosen one; None: not known.
    """
    typed: Layer = {}
    for path, value in layer.items():
        kind, options, rest = path.partition(".options.")
        text = value.raw if value.text is None and isinstance(value.raw, str) else value.text
        if isinstance(value.raw, str) and value.raw != AUTO and _is_list(path):
            typed[path] = replace(value, raw=split_list(value.raw))
        elif options and text is not None and (model := model_of(kind)) is not None:
            typed[path] = replace(value, raw=read_option(model, rest.split("."), text, value.raw))
        else:
            typed[path] = value
    return typed


def _is_list(path: str) -> bool:
    return path in DECLARATIONS and DECLARATIONS[path].is_list


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # not TOML, or an integer with more digits than Python parses
        return _json_value(text)
    return parsed["value"] if list(parsed) == ["value"] else text


def _json_value(text: str) -> Any:
    """Return a mapping or list that is written as JSON; other texts unchanged."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _unknown(path: str, origin: str) -> ConfigError:
    known = [*known_paths(), *section_fields()]
    if "." in path and path in known:  # a dot in a quoted key of TOML, or in a key of YAML or JSON, is part of the name
        section, _, leaf = path.rpartition(".")
        return ConfigError(
            f"{path!r} is written as one name ({origin}), not as a key of the section {section}.",
            remedy=f"write {leaf} inside the section {section} of {origin.partition(' ')[2]}",
        )
    nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not nearest:  # the right name in the wrong section is the most common mistake
        leaf = path.rpartition(".")[2]
        nearest = [known_path for known_path in known if known_path.rpartition(".")[2] == leaf][:1]
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    # `config show` reads the same files and variables, so it would only fail with the same error
    remedy = fix_at(origin) or (f"--set {nearest[0]}=VALUE" if nearest else f"{SHOW} lists them")
    return ConfigError(f"There is no setting {path!r} ({origin}).{hint}", remedy=remedy)


def fix_at(origin: str) -> str:
    """Return the remedy for a wrong setting of a file, variable or argument; empty for flags and `--set`."""
    kind, _, place = origin.partition(" ")
    if kind == "environment":
        return f"unset {place}"
    if kind == ".env":
        return f"remove {place} from {DOTENV_FILE}"
    return f"correct {place}" if kind in ("file", "argument") else ""
