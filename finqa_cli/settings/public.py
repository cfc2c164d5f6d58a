"""Settings as a plain mapping for files and screens, free of secrets, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.masking import MASK, masked
from finqa_cli.settings.schema import AUTO, Settings

BEFORE_THERE_WERE = {"train": {"max_staleness": 0}}
"""What runs did that were recorded before a setting existed, where its default does something else now."""


def to_public_dict(settings: Settings) -> dict[str, Any]:
    """JSON-ready mapping of all settings with secrets masked: what is written into the run folder."""
    public: dict[str, Any] = masked(settings.model_dump(mode="json"))
    return public


def to_stated_dict(settings: Settings) -> dict[str, Any]:
    """As `to_public_dict`, with `auto` for what the placement plan decides (`run.placed`), which is left out itself."""
    public = to_public_dict(settings)
    for path in public["run"].pop("placed"):
        section, _, field = path.partition(".")
        public[section][field] = AUTO
    return public


def from_public_dict(public: Mapping[str, Any]) -> Settings:
    """The settings that `to_public_dict` described. Masked options are left out, so their own defaults apply; a run
    that is older than a setting keeps doing what it did.

    Raises:
        ConfigError: A key or value is not a setting of this version.
    """
    try:
        return Settings.model_validate(_completed(_without_masks(public)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"The recorded settings do not fit this version: {place}: {first['msg']}.") from error


def _completed(public: Any) -> Any:
    """With `BEFORE_THERE_WERE` in the sections that are recorded; `eval.limit` drew by the run's seed then."""
    before: dict[str, dict[str, Any]] = {**BEFORE_THERE_WERE}
    if isinstance(train := public.get("train"), Mapping) and "seed" in train:
        before["eval"] = {"seed": train["seed"]}
    recorded = {name: body for name, body in before.items() if isinstance(public.get(name), Mapping)}
    return {**public, **{name: {**body, **public[name]} for name, body in recorded.items()}}


def _without_masks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_masks(item) for key, item in value.items() if item != MASK}
    return [_without_masks(item) for item in value] if isinstance(value, (list, tuple)) else value
