"""Conversion of a call's arguments to settings: keywords with the names of flags, and `settings=` by dotted paths."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from finqa_cli import logs
from finqa_cli.errors import UsageError
from finqa_cli.settings import Loaded
from finqa_cli.settings.offered import keywords_of, offered_settings
from finqa_cli.settings.schema import DECLARATIONS
from finqa_cli.wiring.command_settings import check_sandboxes, check_snapshot, place_settings, read_layers
from finqa_cli.wiring.placing import Purpose

Files = str | Path | Sequence[str | Path]
"""One settings file or several, or names of settings that ship with finqa, as for `--config`."""

_ENOUGH = 0.6
"""Smallest similarity of a wrong name to the name that is suggested, as for settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The settings that a call gives.

    Attributes:
        function: Name of the function that is called.
        values: Dotted path, spelling in the call, and value of each setting.
        config: Settings files.
    """

    function: str
    values: tuple[tuple[str, str, Any], ...]
    config: tuple[str | Path, ...]

    @property
    def given(self) -> dict[str, Any]:
        """Dotted path -> value of the settings that are given."""
        return {path: value for path, _, value in self.values if value is not None}

    def load(self, implied: Mapping[str, Any], *, purpose: Purpose) -> Loaded:
        """Resolve the settings of the call and place them, as the command does.

        Args:
            implied: Settings that the call implies by its target, or by `quick_test`; given settings override them.
            purpose: What the workflow runs.

        Raises:
            ConfigError: A setting is unknown or wrong, or the run does not fit on this machine.
            UsageError: A setting is given twice, or would have no effect.
        """
        loaded = read_layers(flags=implied, files=self.config, arguments=self.values)
        for path, name, value in self.values:
            if path == "data.snapshot" and value is not None:
                check_snapshot(loaded.settings.environment.name, name)
        check_sandboxes(loaded.settings)
        configure_logs()
        return place_settings(loaded, purpose)

    def refuse(self, run: Path) -> dict[str, Any]:
        """Return the settings of a call that resumes a run. Only settings that may change on a resume are allowed.

        Args:
            run: Folder of the run.

        Raises:
            UsageError: A setting is given that is not allowed.
        """
        free = {path for path, each in DECLARATIONS.items() if each.about.resumable}
        refused = [name for path, name, value in self.values if value is not None and path not in free]
        if refused or self.config:
            names = ", ".join([*refused, *(["config"] if self.config else [])])
            raise UsageError(
                f"A resumed run keeps its settings; resume does not take {names}.",
                remedy=f"leave them out, as in finqa.{self.function}(resume={str(run)!r})",
            )
        configure_logs()
        return self.given


def read_arguments(
    function: str,
    keywords: Mapping[str, Any],
    settings: Mapping[str, Any],
    config: Files,
    *,
    offered: Sequence[str],
    own: Sequence[str],
) -> Arguments:
    """Return the settings that a call gives.

    Args:
        function: Name of the function that is called.
        keywords: Further keywords of the call.
        settings: Dotted path -> value.
        config: Settings files.
        offered: Settings, or sections of them, whose flags are keywords of the function.
        own: Names of the function's own arguments.

    Raises:
        UsageError: There is no such keyword; the message names the nearest one.
    """
    paths = {name: each.path for each in offered_settings(offered) for name in keywords_of(each)}
    values: list[tuple[str, str, Any]] = []
    for name, value in keywords.items():
        if name not in paths:
            raise _unknown(function, name, [*paths, *own])
        values.append((paths[name], name, value))
    values += [(path, f"settings[{path!r}]", value) for path, value in settings.items()]
    files = (config,) if isinstance(config, (str, Path)) else tuple(config)
    return Arguments(function=function, values=tuple(values), config=files)


def configure_logs() -> None:
    """Set up the logs of finqa, unless the program that calls it has set up structlog itself."""
    if not structlog.is_configured():
        logs.configure()


def _unknown(function: str, name: str, known: Sequence[str]) -> UsageError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_ENOUGH)
    if nearest:
        return UsageError(
            f"finqa.{function} has no argument {name!r}. Did you mean {nearest[0]!r}?", remedy=f"give {nearest[0]}=..."
        )
    paths = [path for path in DECLARATIONS if path.rpartition(".")[2] == name]
    if paths:
        return UsageError(
            f"finqa.{function} has no argument {name!r}. There is a setting {paths[0]!r}.",
            remedy=f"give settings={{'{paths[0]}': ...}}",
        )
    return UsageError(f"finqa.{function} has no argument {name!r}.", remedy="finqa config show lists the settings")
