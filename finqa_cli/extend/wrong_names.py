"""Messages about names that do not exist and options that a component does not take."""

from __future__ import annotations

import difflib

from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.extend.hookspecs import Component
from finqa_cli.masking import MASK, is_secret, mask_text, masked


def did_you_mean(name: str, known: list[str]) -> str:
    """Return a question about the nearest of the known names; empty if none is near."""
    nearest = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def option_error(component: Component, error: ValidationError, known: list[str]) -> ConfigError:
    """Return the error of a component's wrong options; `known` are the names of its options."""
    found = error.errors()
    # an unknown option first: where it is misspelt, the option that is missing is meant
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        what = f"has no option {field!r}.{did_you_mean(field, known)} Options: {', '.join(known) or 'none'}."
    elif first["type"] == "missing":
        what = f"needs the option {field!r}, which is not given."
    elif not field:
        what = f"options: {mask_text(first['msg'].removeprefix('Value error, '))}."
    else:
        hidden = any(is_secret(str(part)) or str(part).endswith("_env") for part in first["loc"])
        given = MASK if hidden else repr(masked(first["input"]))
        what = f"option {field!r}: {mask_text(first['msg'])} (got {given})."
    return ConfigError(f"{component.kind} {component.name!r} {what}", remedy=f"finqa plugins show {component.name}")
