"""What `reward_spec.yaml` holds, as checked models. Numbers are finite; an unknown key is refused."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

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


class Weights(Strict):
    """What each part pays. Source of the defaults: the RL-LLM FinQA pipeline, module 02."""

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
    """Largest relative error |answer - truth| / |truth| that is close; `percentage` when the truth carries a %."""

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
    """A number as text. YAML reads a bare yes or no as true or false, whose spelling is lost."""
    if isinstance(value, bool):
        raise ValueError('put quotes around yes and no: "yes"')
    return str(value) if isinstance(value, (int, float)) else value


def _reply(value: object) -> object:
    """A reply may be written as a mapping, which stands for its JSON."""
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


class RewardSpec(Strict):
    """The whole file. `weights` and `decay` are of `weighted`, `ternary_mapping` of `ternary`, the rest of both."""

    weights: Weights = Weights()
    tolerances: Tolerances = Tolerances()
    decay: Decay = "linear"
    format: Format = "json"
    components: dict[str, str] = Field(default_factory=lambda: dict(DESCRIPTIONS))
    ternary_mapping: TernaryMapping = TernaryMapping()
    tests: tuple[CaseSpec, ...] = ()


def weights_of(value: object) -> object:
    """`exact=1.0,numerical=0.8` as a mapping; anything else as it is."""
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
