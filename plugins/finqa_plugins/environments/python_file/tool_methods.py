"""Tools made of methods: JSON schemas from type hints and docstrings, and arguments validated by them (pydantic)."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from finqa_cli.errors import ConfigError
from finqa_cli.extend.plugin_calls import definition
from finqa_cli.types import ToolSpec

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples|Note):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+(?:\n\s{8,}.+)*)", re.MULTILINE)


class WrongArgumentsError(Exception):
    """The arguments of a call are wrong; the message is meant for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMethod:
    """A tool: what the model sees of it, and the model of its arguments.

    Attributes:
        spec: Name, description and JSON schema.
        arguments: One field for each parameter, whose alias is the parameter's name.
    """

    spec: ToolSpec
    arguments: type[BaseModel]

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter, converted to their types.

        Raises:
            WrongArgumentsError: An argument is missing, unknown or of a wrong type.
        """
        try:
            read = self.arguments.model_validate(dict(given))
        except ValidationError as error:
            wrong = "; ".join(f"{_where(each['loc'])}{each['msg']}" for each in error.errors()[:3])
            raise WrongArgumentsError(f"{self.spec.name}: {wrong}") from None
        fields = self.arguments.model_fields
        return {str(fields[name].alias): getattr(read, name) for name in fields}


def make_tool(name: str, method: Callable[..., Any], *, hidden: Collection[str] = ()) -> ToolMethod:
    """Make a tool from a function or method.

    Args:
        name: Name of the tool.
        method: The function, or an unbound method, whose `self` is left out.
        hidden: Parameters that the environment fills in.

    Raises:
        ConfigError: A parameter has no type hint, or one without a JSON schema.
    """
    text = inspect.cleandoc(method.__doc__ or "")
    described = dict(_described(text))
    try:
        hints = typing.get_type_hints(method, include_extras=True)
    except (NameError, TypeError) as error:
        raise _unusable(name, method, f"its type hints cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(method, hidden)):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise _unusable(name, method, f"its parameter {parameter} cannot be passed by name")
        if parameter.name not in hints:
            raise _unusable(name, method, f"its parameter {parameter.name!r} has no type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        about = Field(default, alias=parameter.name, description=described.get(parameter.name))
        fields[f"argument_{number}"] = (hints[parameter.name], about)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = _without_titles(model.model_json_schema(by_alias=True))
    except (PydanticUserError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise _unusable(name, method, f"its parameters cannot be converted to a JSON schema: {reason}") from error
    description = _SECTION.split(text)[0].strip() or name
    return ToolMethod(spec=ToolSpec(name=name, description=description, parameters=schema), arguments=model)


def _parameters(method: Callable[..., Any], hidden: Collection[str]) -> Iterator[inspect.Parameter]:
    for number, parameter in enumerate(inspect.signature(method).parameters.values()):
        if not (number == 0 and parameter.name in ("self", "cls")) and parameter.name not in hidden:
            yield parameter


def _described(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and description of each parameter in a docstring with a Google-style `Args:` section."""
    parts = _SECTION.split(text)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if heading in ("Args", "Arguments", "Parameters"):
            for found in _ARGUMENT.finditer(body):
                yield found[1], " ".join(found[2].split())


def _without_titles(schema: Any, *, of_properties: bool = False) -> Any:
    """Return a schema without pydantic's generated titles; a property may be called `title`."""
    if isinstance(schema, dict):
        kept = {key: part for key, part in schema.items() if of_properties or key != "title"}
        inner = () if of_properties else ("properties", "$defs")
        return {key: _without_titles(part, of_properties=key in inner) for key, part in kept.items()}
    return [_without_titles(part) for part in schema] if isinstance(schema, list) else schema


def _where(location: tuple[int | str, ...]) -> str:
    return f"argument {'.'.join(map(str, location))}: " if location else ""


def _unusable(name: str, method: Callable[..., Any], reason: str) -> ConfigError:
    place = definition(method)
    remedy = f"correct {place}, or rename it _{name}"
    return ConfigError(f"{name}() cannot be a tool: {reason} ({place}).", remedy=remedy)
