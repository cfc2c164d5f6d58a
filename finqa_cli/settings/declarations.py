"""The declaration of a setting in addition to its type and default: help text, unit, panel, flags and variable.

`schema.py` declares every setting once, by `setting(...)`. Flags, help, environment variables, `.env.example` and
`docs/reference.md` are read from there, by `schema.DECLARATIONS`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from finqa_cli.extend import Registry

PREFIX = "FINQA_"
_KEY = "setting"

COMPONENTS, SANDBOXES, DATA, MODEL = "Components", "Sandboxes", "Data and evaluation", "Model"
GENERATION, TRAINING, METHOD, RUN = "Generation", "Training", "Method", "Run"

PANELS: Mapping[str, str] = {
    **dict.fromkeys(
        ("environment", "engine", "sandbox", "optimizer", "reward", "grader", "learner", "codec"), COMPONENTS
    ),
    "optimizer.options": METHOD,
    "trackers": RUN,
    "pool": SANDBOXES,
    "data": DATA,
    "model": MODEL,
    "lora": MODEL,
    "generation": GENERATION,
    "train": TRAINING,
    "eval": DATA,
    "sft": METHOD,
    "cluster": RUN,
    "run": RUN,
}
"""Section, or `SECTION.options` -> heading of its flags in the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Information that `setting` adds to a field, and a component's `Flag` to an option.

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
        command: For an option of an optimizer: the command that trains with it; empty: `finqa train`.
    """

    path: str
    annotation: Any
    default: Any
    about: About
    command: str = ""

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


def declare(settings: type[BaseModel], components: Registry) -> dict[str, Declaration]:
    """Return every setting by its dotted path, in the order of the schema, then the options that have a flag.

    A flag of a component that another setting has is left out, and the registry reports that.

    Args:
        settings: The class of all sections.
        components: The registry, whose components declare the flags of their options.

    Raises:
        TypeError: A field is not declared by `setting`.
    """
    declared: dict[str, Declaration] = {}
    for section, field in settings.model_fields.items():
        model = field.annotation
        inner = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        if "options" in inner:
            parts = [_declaration(f"{section}.name", field, str, field.default.name)]
        elif inner:
            parts = [
                _declaration(f"{section}.{name}", part, part.annotation, part.default) for name, part in inner.items()
            ]
        else:
            parts = [_declaration(section, field, model, field.default)]
        declared |= {part.path: part for part in parts}
    return declared | _declare_flags(components, declared)


def _declare_flags(components: Registry, settings: Mapping[str, Declaration]) -> dict[str, Declaration]:
    known = {name: path for path, each in settings.items() for name in _names(each.about.flags, each.about.variable)}
    general = ("--config", "--set", "--json", "--quiet", "--debug", "--help", "--help-all")
    owners = {
        "": {**known, **dict.fromkeys(general, "every command")}
    }  # by `command`: another one offers other settings
    declared: dict[str, Declaration] = {}
    for component in (component for report in components.reports for component in report.components):
        for option, flag in component.flags.items():
            path = f"{component.kind}.options.{option}"
            names = _names(flag.flags, flag.variable)
            first = declared.get(path)
            owner = owners.setdefault(component.command, {})
            if f"{component.kind}.name" not in settings:
                problem = f"there are no flags for components of kind {component.kind}"
            elif first is not None and first.about.flags != flag.flags:
                problem = f"option {option} has the flag {first.about.flags}"
            elif taken := next((name for name in names if owner.setdefault(name, path) != path), ""):
                problem = f"{taken} belongs to {owner[taken]}"
            else:
                about = About(**{name: getattr(flag, name) for name in _OF_FLAG}, typed=flag.kind)
                declaration = Declaration(
                    path=path, annotation=flag.kind, default=None, about=about, command=component.command
                )
                declared.setdefault(path, _with_panel(declaration))
                continue
            components.leave_out_flag(component, flag, problem)
    return declared


_OF_FLAG = ("help", "flags", "variable", "main", "panel", "shown")


def _names(flags: str, variable: str) -> list[str]:
    return [*flags.replace("/", " ").split(), *([variable] if variable else [])]


def _with_panel(each: Declaration) -> Declaration:
    section = each.path.rpartition(".")[0] or each.path
    panel = each.about.panel or PANELS.get(section) or PANELS[section.partition(".")[0]]
    return replace(each, about=replace(each.about, panel=panel))


def _declaration(path: str, field: FieldInfo, annotation: Any, default: Any) -> Declaration:
    extra = field.json_schema_extra
    about = extra.get(_KEY) if isinstance(extra, dict) else None
    if not isinstance(about, About):
        raise TypeError(f"{path} is not declared by setting(default, help, ...).")
    return _with_panel(Declaration(path=path, annotation=annotation, default=default, about=about))
