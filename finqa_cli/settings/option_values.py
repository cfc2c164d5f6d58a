"""Values of options that were given as text, such as by `--set` or a variable: the type of the option decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError


def read_option(model: type[BaseModel], names: Sequence[str], text: str, value: Any) -> Any:
    """Return the value of an option: the text as it was typed where the option is a text, else what it means in TOML.

    So `1.10`, `0x10` and `true` stay as they are in a text option, and are a number or a boolean elsewhere. A list may
    be separated by commas or blanks. If nothing fits, `value` is returned, which is refused with the other options.

    Args:
        model: Class of the component's options.
        names: Name of the option; then, for an option that is a mapping, the names of the member.
        text: The text as it was typed.
        value: The text as TOML, or the text if it is not TOML.
    """
    field = model.model_fields.get(names[0])
    if field is None or field.annotation is None:
        return value
    try:
        adapter = TypeAdapter[Any](field.annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value
    tries: list[tuple[Any, bool]] = [(value, True), (text, True), (text, False), (value, False)]
    if not isinstance(value, (list, dict)):
        tries.append((split_list(text), False))
    return next((each for each, strict in tries if _fits(adapter, names[1:], each, strict=strict)), value)


def split_list(text: str) -> list[str]:
    """Return the items of a list that is separated by commas or blanks."""
    return [item for item in re.split(r"[,\s]+", text) if item]


def _fits(adapter: TypeAdapter[Any], members: Sequence[str], value: Any, *, strict: bool) -> bool:
    for name in reversed(members):
        value = {name: value}
    try:
        adapter.validate_python(value, strict=strict)
    except ValidationError:
        return False
    return True
