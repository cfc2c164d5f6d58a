"""The defaults that a command's help shows: those of the environment and policy that are chosen on its command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from finqa_cli.errors import FinqaError
from finqa_cli.masking import mask_text
from finqa_cli.settings.declarations import Declaration

GIVEN = ("flag", "--set")
"""Origins of values on the command line itself, which are no defaults."""

_CHOSEN = ("model.name", "engine.name", "sandbox.name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the settings are without the flags of a command.

    Attributes:
        about: The environment and what plays in it, in words.
        shown: Dotted path -> default as the help shows it, of those that differ from the declaration's.
        without: Paths of options that the chosen environment does not have.
    """

    about: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()


def effective_defaults(
    offered: Sequence[Declaration],
    *,
    flags: Mapping[str, Any],
    files: Sequence[str] = (),
    assignments: Sequence[str] = (),
    target: str = "",
) -> Defaults:
    """Resolve the layers below a command line: files, variables and the profile of the policy that would play.

    Args:
        offered: Settings that the command offers.
        flags: Dotted path -> text of the flags that are given with `--help`; those that choose a component count.
        files: The texts of `--config`.
        assignments: The texts of `--set`.
        target: The policy or engine of the command's argument; empty: none is given.

    Returns:
        No values where a layer is wrong: the help then shows what is declared, and the command itself reports the
        error.
    """
    from finqa_cli.extend import registry
    from finqa_cli.wiring.command_settings import read_layers

    try:
        if target:
            from finqa_cli.evaluation.planned_evaluation import target_settings

            flags = {**target_settings(flags, target), **flags}
        flags = {path: value for path, value in flags.items() if path.endswith(".name") or path == "data.path"}
        loaded = read_layers(flags=flags, files=files, assignments=assignments)
        environment = registry().find("environment", loaded.settings.environment.name)
        engine = registry().find("engine", loaded.settings.engine.name)
        known = registry().config_class(environment)
        options = known.model_fields if known else {}
    except (FinqaError, ImportError):
        return Defaults()
    plays = f"engine {engine.name}" if engine.modelless else f"model {loaded.settings.model.name}"
    prefix = "environment.options."
    without = frozenset(
        each.path for each in offered if each.path.startswith(prefix) and each.path.removeprefix(prefix) not in options
    )
    return Defaults(
        about=f"environment {environment.name}, {plays}",
        shown=dict(_shown(offered, loaded.settings, loaded.origins, loaded.undecided)),
        without=without,
    )


def _shown(
    offered: Sequence[Declaration], settings: Any, origins: Mapping[str, str], undecided: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for each in offered:
        if origins.get(each.path, "default") in (*GIVEN, "default") or each.path in undecided:
            continue
        value = settings
        for part in each.path.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        text = mask_text(_text(each, value))
        if origins[each.path] == "auto":
            text = text if each.path in _CHOSEN else each.shown_default
        if text != each.shown_default:
            yield each.path, text


def _text(declaration: Declaration, value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) or "none"
    if value is None or value is False:
        return "off" if value is False and declaration.default is not False else "none" if value is None else ""
    if value == declaration.default:
        return declaration.shown_default
    return replace(declaration, default=value, about=replace(declaration.about, shown="")).shown_default
