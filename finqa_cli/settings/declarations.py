"""The declaration of a setting in addition to its type and default: help text, unit, panel, flags and variable.

`schema.py` declares every setting once, by `setting(...)`. Flags, help, environment variables, `.env.example` and
`docs/reference.md` are read from there, by `schema.DECLARATIONS`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

PREFIX = "FINQA_"
_KEY = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Information that `setting` and `option` add to a field.

    Attributes:
        help: Noun phrase without a full stop at its end.
        flags: Names on the command line, such as `--lr --learning-rate` or `--sleep/--no-sleep`; empty: only `--set`.
        variable: Environment variable in addition to FINQA_SECTION__FIELD; empty: none.
        unit: Unit of the value; empty: none.
        main: Whether `--help` shows the flag. `--help-all` shows all flags.
        panel: Heading of the flag in the help; empty: the panel of the section.
        placed: The default is `auto`: the placement plan decides the value if there are GPUs.
        resumable: The value may change when a run is resumed.
        shown: Text of the default in the help; empty: the default itself.
        typed: Type of the flag if it differs from the field's type.
    """

    help: str
    flags: str = ""
    variable: str = ""
    unit: str = ""
    main: bool = False
    panel: str = ""
    placed: bool = False
    resumable: bool = False
    shown: str = ""
    typed: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One setting, or one option of a component that has a flag.

    Attributes:
        path: Dotted path, such as `train.seed`, `engine.name` or `environment.options.hints`.
        annotation: Type of the value.
        default: Default value; None for options of components, because the component's class has the default.
        about: Help, flags and variable.
    """

    path: str
    annotation: Any
    default: Any
    about: About

    @property
    def parameter(self) -> str:
        """Name of the parameter in the functions of commands."""
        return self.path.replace(".", "__")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, so that a text is split at commas."""
        return typing.get_origin(self.annotation) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that the setting allows, if its type is a `Literal`; empty otherwise."""
        kinds = (self.annotation, *typing.get_args(self.annotation))
        return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal), ())

    @property
    def shown_default(self) -> str:
        """The default as the help shows it; empty where there is none."""
        if self.about.placed:
            return self.about.shown or "auto"
        if self.about.shown or self.default is None or self.default is False or self.default == ():
            return self.about.shown
        if self.default is True:
            return "on"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def flag_type(self) -> Any:
        """Type of the flag. Limits and names are checked after the layers are merged, not by the command line."""
        if self.about.typed is not None:
            return self.about.typed
        if self.is_list:
            return list[str] if typing.get_args(self.annotation)[0] is not str else str
        inner = [kind for kind in typing.get_args(self.annotation) if kind is not NoneType]
        kind = inner[0] if NoneType in typing.get_args(self.annotation) else self.annotation
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        return str if typing.get_origin(kind) is typing.Literal else kind


def setting(default: Any, help: str, flags: str = "", **details: Any) -> Any:
    """Return a field of a section with its declaration.

    Args:
        default: Default value.
        help: Noun phrase, see `About.help`.
        flags: Names on the command line, see `About.flags`.
        details: Further attributes of `About`, and constraints of pydantic such as `min_length`.
    """
    known = {name: details.pop(name) for name in tuple(details) if name in About.__dataclass_fields__}
    about = About(help=help, flags=flags, **known)
    return Field(default=default, description=help, json_schema_extra={_KEY: about}, **details)  # type: ignore[dict-item]


def option(kind: Any, help: str, flags: str, **details: Any) -> About:
    """Return the flag of an option of a component. Its class has the default and checks the value."""
    return About(help=help, flags=flags, typed=kind, **details)


def declare(
    settings: type[BaseModel], panels: Mapping[str, str], options: Mapping[str, About]
) -> dict[str, Declaration]:
    """Return every setting by its dotted path, in the order of the schema.

    Args:
        settings: The class of all sections.
        panels: Section, or `SECTION.options` -> heading of its flags in the help.
        options: Dotted path -> flag of an option of a component.

    Raises:
        TypeError: A field is not declared by `setting`.
    """

    def declared() -> Iterator[Declaration]:
        for section, field in settings.model_fields.items():
            model = field.annotation
            inner = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
            if "options" in inner:
                yield _declaration(f"{section}.name", field, str, field.default.name)
                for path, about in options.items():
                    if path.startswith(f"{section}."):
                        yield Declaration(path=path, annotation=about.typed, default=None, about=about)
            elif inner:
                yield from (
                    _declaration(f"{section}.{name}", part, part.annotation, part.default)
                    for name, part in inner.items()
                )
            else:
                yield _declaration(section, field, model, field.default)

    def with_panel(each: Declaration) -> Declaration:
        section = each.path.rpartition(".")[0] or each.path
        panel = each.about.panel or panels.get(section) or panels[section.partition(".")[0]]
        return replace(each, about=replace(each.about, panel=panel))

    return {each.path: with_panel(each) for each in declared()}


def _declaration(path: str, field: FieldInfo, annotation: Any, default: Any) -> Declaration:
    extra = field.json_schema_extra
    about = extra.get(_KEY) if isinstance(extra, dict) else None
    if not isinstance(about, About):
        raise TypeError(f"{path} is not declared by setting(default, help, ...).")
    return Declaration(path=path, annotation=annotation, default=default, about=about)
