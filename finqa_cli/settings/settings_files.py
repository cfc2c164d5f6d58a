"""Reads a settings file, TOML, YAML or JSON, and finds the line on which a setting stands."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError

FORMATS = (".toml", ".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Document:
    """A settings file as it was read.

    Attributes:
        file: Where it lies.
        name: What messages call it.
        text: Its content.
        tree: The same, parsed.
    """

    file: Path
    name: str
    text: str
    tree: dict[str, Any]

    def place(self, path: str) -> str:
        """Where a dotted path is set, such as `file finqa.toml:7`; without the line where that is not plain to see."""
        line = line_of(self.text, path)
        return f"file {self.name}:{line}" if line else f"file {self.name}"


def read_document(file: Path, name: str = "") -> Document:
    """Reads a file; what has no known suffix is TOML.

    Raises:
        ConfigError: It cannot be read, is not valid, says something twice, or is no table; the message carries line
            and column where the parser tells them.
    """
    name = name or str(file)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no settings file {name}.", remedy="finqa config list") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"Cannot read settings file {name}: {error}.", remedy="name a file of TOML, YAML or JSON, in UTF-8"
        ) from error
    parse = {".yaml": _parse_yaml, ".yml": _parse_yaml, ".json": _parse_json}.get(file.suffix.lower(), _parse_toml)
    try:
        tree = parse(name, text)
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply for settings.", remedy=f"Mend {name}.") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: the top level must be a table of sections.", remedy="finqa config show")
    return Document(file, name, text, {str(key): value for key, value in tree.items()})


def line_of(text: str, path: str) -> int | None:
    """The line, from 1, on which a dotted path is set; None where it is written in a form that this does not follow.

    The keys are looked for one after the other, each as a whole word where a key can stand, outside comments and
    quotes, the first as a table's head if there is one.
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
    """End of the first match from `at` on that stands neither in a comment nor inside quotes."""
    for match in re.finditer(pattern, text[at:], re.MULTILINE):
        start = at + match.start()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if "#" not in before and not any(before.count(quote) % 2 for quote in "\"'"):
            return at + match.end()
    return None


def _parse_toml(name: str, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}.", remedy=f"Mend {name} at that place.") from error


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _once(name, pairs))
    except json.JSONDecodeError as error:
        place = f"(at line {error.lineno}, column {error.colno})"
        raise ConfigError(
            f"{name} is not valid JSON: {error.msg} {place}.", remedy=f"Mend {name} at that place."
        ) from error


def _once(name: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in pairs:
        if key in tree:
            raise ConfigError(f"{name} sets {key!r} twice in one table.", remedy=f"Mend {name}.")
        tree[key] = value
    return tree


def _parse_yaml(name: str, text: str) -> Any:
    import yaml

    try:
        _refuse_repeated(name, yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(
            f"{name} is not valid YAML: {error.problem}{place}.", remedy=f"Mend {name} at that place."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {error}.", remedy=f"Mend {name}.") from error
    except ValueError as error:  # a scalar that looks like a date or a number and is none
        raise ConfigError(f"{name} is not valid YAML: {error}.", remedy=f"Mend {name}.") from error


def _refuse_repeated(name: str, node: Any) -> None:
    """YAML's own loader takes the last of equal keys in silence. Settings are three tables deep at most."""
    tables = [node] if getattr(node, "id", "") == "mapping" else []
    for _ in range(3):
        inner = []
        for table in tables:
            seen: set[str] = set()
            for key, value in table.value:
                if key.id == "scalar" and key.value in seen:
                    place = f"(at line {key.start_mark.line + 1}, column {key.start_mark.column + 1})"
                    raise ConfigError(f"{name} sets {key.value!r} twice in one table {place}.", remedy=f"Mend {name}.")
                if key.id == "scalar":
                    seen.add(key.value)
                if value.id == "mapping":
                    inner.append(value)
        tables = inner
