"""Reads `reward_spec.yaml` into checked models and joins it with the options of a reward.

Numbers must be finite; unknown keys are errors.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from finqa_cli.documents import parse_yaml
from finqa_cli.errors import ConfigError
from finqa_cli.grading import Profile, versioned
from finqa_cli.grading.answers import Reply, parse_reply

SHOW = "finqa rewards show weighted"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Tolerance = Annotated[float, Field(gt=0, le=1)]
Format = Literal["json", "plain"]
Decay = Literal["linear", "flat"]

DESCRIPTIONS = MappingProxyType(
    {
        "exact": "The answer is the truth: the same text after normalisation, or the same number to 5 decimals.",
        "numerical": "Not exact, but within the tolerance; with linear decay less, the further away.",
        "program": "The program's result is the truth; else the share of the right steps that it has.",
        "format": "A penalty for a reply that is not JSON of the form {answer, program, reasoning}.",
    }
)


class Strict(BaseModel):
    """A part of the specification."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RewardWeights(Strict):
    """The weight of each part. Source of the defaults: the RL-LLM FinQA pipeline, module 02."""

    exact: Share = 1.0
    numerical: Share = 0.8
    program: Share = 0.3
    format: Finite = -0.2

    @field_validator("format")
    @classmethod
    def _is_a_penalty(cls, value: float) -> float:
        if value > 0:
            raise ValueError(f"format is a penalty on malformed replies: give {-value:g}, or 0 for none")
        return value


class Tolerances(Strict):
    """Largest relative error |answer - truth| / |truth| that is close; `percentage` if the truth has a %."""

    numerical: Tolerance = 0.05
    percentage: Tolerance = 0.02


class TernaryMapping(Strict):
    """The three values of the ternary reward."""

    exact: Finite = 1.0
    close: Finite = 0.0
    wrong: Finite = -1.0

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if not self.exact >= self.close >= self.wrong:
            raise ValueError("must fall from exact over close to wrong")
        return self


def _text(value: object) -> object:
    """Return a number as text. YAML reads a bare yes or no as true or false, whose spelling is lost."""
    if isinstance(value, bool):
        raise ValueError('put quotes around yes and no: "yes"')
    return str(value) if isinstance(value, (int, float)) else value


def _reply(value: object) -> object:
    """Return a mapping as JSON: a reply may be written as one."""
    return json.dumps(value) if isinstance(value, dict) else _text(value)


class CaseSpec(Strict):
    """One test of a specification: a reply, and the parts (or the `total`) that it must get from a reward."""

    name: str = Field(min_length=1)
    reward: Literal["weighted", "ternary"] = "weighted"
    solution: Annotated[str, BeforeValidator(_reply)]
    truth: Annotated[str, BeforeValidator(_text)]
    program: str = ""
    question: str = ""
    table: tuple[tuple[Annotated[str, BeforeValidator(_text)], ...], ...] = ()
    expected: dict[str, Finite] = Field(min_length=1)


def _reads_numbers(profile: Profile) -> Profile:
    if profile == "openenv":
        raise ValueError("openenv reads no values: take strict, strict-1 or strict-3")
    return profile


Reader = Annotated[Profile, AfterValidator(versioned), AfterValidator(_reads_numbers)]
"""Grading profile whose reader of values is used."""


class RewardSpec(Strict):
    """The whole file. `weights` and `decay` belong to `weighted`, `ternary_mapping` to `ternary`, the rest to both."""

    weights: RewardWeights = RewardWeights()
    tolerances: Tolerances = Tolerances()
    decay: Decay = "linear"
    format: Format = "json"
    profile: Reader = Field(default="strict", validate_default=True)
    components: dict[str, str] = Field(default_factory=lambda: dict(DESCRIPTIONS))
    ternary_mapping: TernaryMapping = TernaryMapping()
    tests: tuple[CaseSpec, ...] = ()


def weights_of(value: object) -> object:
    """Parse `exact=1.0,numerical=0.8` into a mapping; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    weights: dict[str, str] = {}
    for part in value.split(","):
        name, equals, number = part.partition("=")
        name = name.strip()
        if not equals or name in weights:
            raise ValueError(f"takes exact=1.0,numerical=0.8,program=0.3,format=-0.2, each once, but got {part!r}")
        weights[name] = number.strip()
    return weights


def read_solution(solution: str, written: Format) -> Reply:
    """Read a solution. `json`: a reply with answer and program, or its error. `plain`: the whole text is the answer."""
    return parse_reply(solution) if written == "json" else Reply(answer=solution.strip())


def resolve(options: BaseModel, file: Path | None) -> RewardSpec:
    """Return the specification: defaults, then the file, then the options that were given.

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
    """Read the specification in a file, with defaults for missing keys. Raises as `resolve` does."""
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
    """Safe YAML in which a key may occur only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _parse(file: Path, text: str) -> Any:
    try:
        return parse_yaml(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        remedy = f"correct {file} at that place"
        raise ConfigError(f"{file} is not valid YAML: {error.problem}{place}.", remedy=remedy) from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        what = reason if reason.startswith("is ") else f"is not valid YAML: {reason}"
        raise ConfigError(f"{file} {what}.", remedy=f"correct {file}") from error


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
