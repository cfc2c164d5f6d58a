"""Settings files in TOML, YAML or JSON: files of the user, and files that ship with the package, which have names.

Files of two tiers can be combined freely. The model tier sets what is trained and how it fits the machine, the
optimizer tier sets how it is trained. A file of a tier begins with `tier = "model"` or `tier = "optimizer"`, and must
not set anything of the other tier, so the order of the files does not matter. A file without `tier` may set everything.
Files of the published pipeline are translated (see `published_names`).
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic_settings import JsonConfigSettingsSource, TomlConfigSettingsSource, YamlConfigSettingsSource

from finqa_cli.documents import parse_json, parse_toml, parse_yaml
from finqa_cli.errors import ConfigError
from finqa_cli.settings.layers import Layer, LayeredSettings, Value, canonical, flatten
from finqa_cli.settings.published_names import translate_file

FORMATS = (".toml", ".yaml", ".yml", ".json")
LIST = "finqa config list"
RESOLVED = "resolved"
"""Key that marks a file which finqa wrote with all settings of a pipeline step; no value in it counts as the user's."""

TIERS: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "lora", "codec", "sft.learning_rate", "train.token_budget", "train.gradient_checkpointing"),
    "optimizer": (
        "optimizer",
        "learner",
        "generation.max_gen_tokens",
        "generation.temperature",
        "generation.top_p",
        "train",
        "sft",
    ),
}
"""Settings and sections that a file of each tier may set. A setting that both tiers name belongs to the first."""


@dataclass(frozen=True, slots=True)
class Document:
    """A settings file as it was read.

    Attributes:
        file: Its path.
        name: Its name in messages.
        text: Its content.
        tree: Its content, parsed.
    """

    file: Path
    name: str
    text: str
    tree: dict[str, Any]

    def place(self, path: str) -> str:
        """Return the place where a dotted path is set, such as `file finqa.toml:7`; without an unknown line."""
        line = line_of(self.text, path)
        return f"file {self.name}:{line}" if line else f"file {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A file that ships with the package.

    Attributes:
        name: Its name for `--config`.
        kind: `model` or `optimizer` for a tier, `settings` without a tier, `specification` of a new model, or
            `experiment`.
        about: Text of its opening comment.
        file: Its path.
    """

    name: str
    kind: str
    about: str
    file: Path


def list_shipped() -> list[Shipped]:
    """Return all files that ship with the package, by folder and name."""
    return [_described(file) for file in shipped().values()]


def shipped() -> dict[str, Path]:
    """Return the files that ship with the package by folder and name, such as `models/qwen3-4b`."""
    root = Path(str(resources.files("finqa_cli"))) / "configs"
    return {f"{file.parent.name}/{file.stem}": file for file in sorted(root.glob("*/*.toml"))}


def is_shipped(origin: str) -> bool:
    """Return whether an origin (`Value.origin`) is a file that ships with the package."""
    kind, _, place = origin.partition(" ")
    name = place.rpartition(":")[0] if place.rpartition(":")[2].isdigit() else place
    known = shipped()
    named = f"{name.removesuffix('.toml')}" in known and not Path(name).exists()
    return kind == "file" and (named or Path(name).resolve() in {file.resolve() for file in known.values()})


def tier_of(path: str) -> str | None:
    """Return the tier that a setting belongs to; None if it belongs to none."""
    for tier, paths in TIERS.items():
        if any(path == known or path.startswith(f"{known}.") for known in paths):
            return tier
    return None


def file_layers(references: Sequence[str | Path], notes: list[str] | None = None) -> list[Layer]:
    """Return a layer for each file or name, in order.

    Args:
        references: Files, and names of files that ship with the package.
        notes: Gets a line for each file with keys that have no effect.

    Raises:
        ConfigError: A file is absent, unreadable or invalid; it sets an unknown setting or a setting outside its tier;
            or two files belong to the same tier.
    """
    layers: list[Layer] = []
    seen: dict[str, str] = {}
    for reference in references:
        document = _find(str(reference))
        layer, tier, idle = _layer(document)
        if notes is not None and idle:
            notes.append(f"{document.name} sets what has no effect in finqa: {idle}")
        if tier in seen:
            raise ConfigError(
                f"{seen[tier]} and {document.name} both belong to the {tier} tier; a run can use one file per tier.",
                remedy="leave one out, or write your own file with the differences, without `tier`",
            )
        if tier:
            seen[tier] = document.name
        layers.append(layer)
    return layers


def _described(file: Path) -> Shipped:
    document = read_document(file)
    marks = {"architecture": "specification", "experiment": "experiment"}
    marked = (kind for mark, kind in marks.items() if mark in document.tree)
    kind = next(marked, document.tree.get("tier", "settings"))
    comment = itertools.takewhile(lambda line: line.startswith("#"), document.text.splitlines())
    return Shipped(name=file.stem, kind=kind, about=" ".join(line.lstrip("# ") for line in comment), file=file)


def _find(reference: str) -> Document:
    """Read a file by its path, or one that ships with the package by its name, with or without its folder."""
    path = Path(reference).expanduser()
    if path.suffix.lower() in FORMATS or path.is_file() or reference.startswith((".", "/", "~")):
        return read_document(path)
    known = shipped()
    found = [name for name in known if reference in (name, name.rpartition("/")[2])]
    if not found:
        names = [name.rpartition("/")[2] for name in known]
        nearest = difflib.get_close_matches(reference.rpartition("/")[2], names, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(
            f"{reference!r} is neither a settings file nor the name of an included one.{hint}", remedy=LIST
        )
    return read_document(known[found[0]], f"{found[0]}.toml")


def _layer(document: Document) -> tuple[Layer, str | None, str]:
    """Return the settings of a file, its tier if it has one, and the keys without effect of a published file."""
    tree = dict(document.tree)
    if "architecture" in tree:
        raise ConfigError(
            f"{document.name} is the specification of a new model; it contains no settings.",
            remedy=f"finqa sft DEMONSTRATIONS --init {document.file}; for the embedded one: --config embedded",
        )
    if "experiment" in tree:
        raise ConfigError(
            f"{document.name} is an experiment (a matrix of training runs); it contains no settings of a single run.",
            remedy=f"finqa experiment run {document.file} --dry-run shows it",
        )
    if (translation := translate_file(tree, document.name)) is not None:
        return (
            {
                canonical(path, document.place(translation.places[path])): Value(
                    value, document.place(translation.places[path])
                )
                for path, value in translation.values.items()
            },
            None,
            translation.idle,
        )
    resolved = tree.pop(RESOLVED, False) is True
    tier = tree.pop("tier", None)
    if "tier" in document.tree and tier not in tuple(TIERS):
        raise ConfigError(
            f"tier = {tier!r} ({document.place('tier')}): tiers are {', '.join(TIERS)}.",
            remedy=f"correct {document.name}",
        )
    kind = "plan" if resolved else "file"
    layer = flatten(tree, lambda path: kind + document.place(path).removeprefix("file"))
    for path, value in layer.items():
        if tier and tier_of(path) != tier:
            owner = tier_of(path)
            belongs = f"it belongs to the {owner} tier" if owner else "it belongs to neither tier"
            raise ConfigError(
                f"{path} ({value.origin}) cannot be set by a file of the {tier} tier: {belongs}.",
                remedy=f"move it to another --config file, or remove `tier` from {document.name}",
            )
    return layer, tier, ""


def read_document(file: Path, name: str = "") -> Document:
    """Read a file. A file without a known suffix is read as TOML.

    Args:
        file: Path of the file.
        name: Its name in messages; empty: the path.

    Raises:
        ConfigError: It cannot be read, is not valid, sets a key twice, or is not a table. The message has line and
            column if the parser reports them.
    """
    name = name or str(file)
    try:
        if file.exists() and not file.is_file():  # a pipe or device might never end
            raise ConfigError(
                f"The settings file {name} is a {'folder' if file.is_dir() else 'pipe or device'}.",
                remedy="name a regular file of TOML, YAML or JSON",
            )
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no settings file {name}.", remedy=LIST) from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"Cannot read settings file {name}: {error}.", remedy="name a file of TOML, YAML or JSON, in UTF-8"
        ) from error
    try:
        return Document(file, name, text, _read_tree(file))
    except tomllib.TOMLDecodeError as error:
        reason = f"is not valid TOML: {error}"
    except (_InvalidFile, ValueError) as error:
        reason = "has a number that is too long" if "digits" in str(error) else str(error)
    raise ConfigError(f"{name} {reason}.", remedy=f"correct {name}")


def _read_tree(file: Path) -> dict[str, Any]:
    """Return what the source of pydantic-settings for this suffix reads."""
    suffix = file.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _YamlSource(LayeredSettings, yaml_file=file)()
    if suffix == ".json":
        return _JsonSource(LayeredSettings, json_file=file)()
    return _TomlSource(LayeredSettings, toml_file=file)()


class _InvalidFile(Exception):
    """A file is invalid. The message is the end of a sentence about the file."""


class _TomlSource(TomlConfigSettingsSource):
    """TOML of limited size and depth."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return parse_toml(file_path.read_text(encoding="utf-8"))


class _JsonSource(JsonConfigSettingsSource):
    """JSON without repeated keys, which Python's parser accepts silently."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return _table(parse_json(file_path.read_text(encoding="utf-8"), unique=True))


class _YamlSource(YamlConfigSettingsSource):
    """YAML without repeated keys, which its parser accepts silently."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        import yaml

        text = file_path.read_text(encoding="utf-8")
        try:
            tree = parse_yaml(text)
            _refuse_repeated(yaml.compose(text, Loader=yaml.SafeLoader))
            return _table(tree or {})
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
            raise _InvalidFile(f"is not valid YAML: {error.problem}{place}") from error
        except ValueError as error:  # a scalar that looks like a date, or an integer with too many digits for Python
            reason = "it has a number that is too long" if "digits" in str(error) else str(error)
            raise _InvalidFile(reason if reason.startswith("is ") else f"is not valid YAML: {reason}") from error
        except yaml.YAMLError as error:
            raise _InvalidFile(f"is not valid YAML: {error}") from error


def _table(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise _InvalidFile("has no table of sections at its top level")
    return {str(key): value for key, value in tree.items()}


def _refuse_repeated(node: Any) -> None:
    """Raise for repeated keys in one table, down to a depth of three tables, which is the depth of settings."""
    tables = [node] if getattr(node, "id", "") == "mapping" else []
    for _ in range(3):
        inner = []
        for table in tables:
            seen: set[str] = set()
            for key, value in table.value:
                if key.id == "scalar" and key.value in seen:
                    place = f"(at line {key.start_mark.line + 1}, column {key.start_mark.column + 1})"
                    raise _InvalidFile(f"sets {key.value!r} twice in one table {place}")
                if key.id == "scalar":
                    seen.add(key.value)
                if value.id == "mapping":
                    inner.append(value)
        tables = inner


def line_of(text: str, path: str) -> int | None:
    """Return the line, from 1, on which a dotted path is set; None if it is not found.

    The keys are searched one after the other, each as a whole word where a key is allowed, outside comments and quotes.
    The first key is searched as a table header first.
    """
    at = 0
    for depth, key in enumerate(path.split(".")):
        word = "(?:" + "|".join(re.escape(f"{quote}{key}{quote}") for quote in ("", '"', "'")) + ")"
        patterns = [rf"(?<![\w.\-\"']){word}(?=\s*[:=])", rf"(?<![\w\-\"']){word}(?=[ \t]*[.\]:=])"]
        if depth == 0:
            patterns.insert(0, rf"^[ \t]*\[[ \t]*{word}(?=[ \t]*[.\]])")
        found = next((place for pattern in patterns if (place := _outside_text(pattern, text, at)) is not None), None)
        if found is None:
            return None
        at = found
    return text.count("\n", 0, at) + 1


def _outside_text(pattern: str, text: str, at: int) -> int | None:
    """Return the end of the first match from `at` on that is neither in a comment nor inside quotes."""
    for match in re.finditer(pattern, text[at:], re.MULTILINE):
        start = at + match.start()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if "#" not in before and not any(before.count(quote) % 2 for quote in "\"'"):
            return at + match.end()
    return None
