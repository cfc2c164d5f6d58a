"""Reads `reward_spec.yaml` and joins it with the options of a reward."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from finqa_cli.errors import ConfigError
from finqa_plugins.rewards.spec import RewardSpec

SHOW = "finqa rewards show weighted"


def resolve(options: BaseModel, file: Path | None) -> RewardSpec:
    """The specification: defaults, then the file, then the options that were given.

    Args:
        options: A reward's own options; those that are not keys of the specification are left out.
        file: `reward_spec.yaml`, or None.

    Raises:
        ConfigError: The file is missing, is not YAML, or has an unknown key or a wrong value.
    """
    given = options.model_dump(exclude_unset=True, include=set(RewardSpec.model_fields))
    if file is None:
        return RewardSpec.model_validate(given)
    read = load(file)
    return RewardSpec.model_validate(_merged(read.model_dump(exclude_unset=True), given))


def load(file: Path) -> RewardSpec:
    """The specification in a file, with defaults where it is silent. Raises as `resolve` does."""
    path = file.expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no reward specification {file}.", remedy=f"{SHOW} --out DIR writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.", remedy=f"{SHOW} --out DIR writes one") from error
    tree = _parse(file, text)
    try:
        return RewardSpec.model_validate({} if tree is None else tree)
    except ValidationError as error:
        raise _wrong(file, error) from error


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may stand once only."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _parse(file: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: it makes plain values only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        remedy = f"mend {file} at that place"
        raise ConfigError(f"{file} is not valid YAML: {error.problem}{place}.", remedy=remedy) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(f"{file} is not valid YAML: {reason}.", remedy=f"mend {file}") from error


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _wrong(file: Path, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{file} has an unknown key {key!r}.{_nearest(key)}", remedy=SHOW)
    if not key:
        return ConfigError(f"{file}: the top level must be a mapping of keys.", remedy=SHOW)
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{file}, key {key!r}: {message} (got {str(first['input'])[:80]!r}).", remedy=SHOW)


def _nearest(key: str) -> str:
    known = list(RewardSpec.model_fields)
    for name, field in RewardSpec.model_fields.items():
        known += [f"{name}.{inner}" for inner in getattr(field.annotation, "model_fields", ())]
    nearest = difflib.get_close_matches(key, known, n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else f" Keys: {', '.join(RewardSpec.model_fields)}."
