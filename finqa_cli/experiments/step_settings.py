"""Settings files of steps: writes them and checks that nothing else contradicts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.compare.comparison import flat
from finqa_cli.experiments.step_runner import Owner, place_of, read_facts
from finqa_cli.extend import registry
from finqa_cli.masking import is_secret
from finqa_cli.runs.durable_files import read_document, write_json
from finqa_cli.settings import (
    ENVIRONMENT,
    RESOLVED,
    Choice,
    Loaded,
    Settings,
    load_settings,
    to_public_dict,
    to_stated_dict,
)
from finqa_cli.settings.schema import KINDS

_MOST_DIFFERENCES = 10
"""Largest number of differences in a message."""


def settings_document(settings: Settings, *, data: Path | None, snapshot: str) -> dict[str, Any]:
    """Returns the settings file of a step: all settings, so that only this file and the environment decide.

    Args:
        settings: Settings of the step.
        data: File or folder for environments without snapshots.
        snapshot: Name of the compiled data, for environments with snapshots.
    """
    document = to_stated_dict(settings)  # the step's own command decides for its machine
    document["data"] |= {"path": str(data) if data is not None else None, "snapshot": snapshot}
    del document["run"]["dir"]
    return {RESOLVED: True, **{section: _stated(body) for section, body in document.items()}}


def _stated(value: Any) -> Any:
    """Returns a value without masked secrets, which come from environment variables, and without unset settings."""
    if isinstance(value, Mapping):
        kept = {key: _stated(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if not (isinstance(item, str) and is_secret(key))}
    return value


def check_recorded(run: Path, wanted: Mapping[str, Any], owner: Owner) -> None:
    """Compares the parameters with those of the folder, unless it is empty.

    Raises:
        ConfigError: The parameters differ, as the message shows; or the folder contains something else.
    """
    if (facts := read_facts(run, owner)) is None:
        return
    if found := differences(facts["parameters"], wanted):
        shown = "; ".join(found[:_MOST_DIFFERENCES]) + ("; ..." if len(found) > _MOST_DIFFERENCES else "")
        article = "an" if owner.command.startswith("e") else "a"
        raise ConfigError(
            f"{run} contains {article} {owner.command} with another configuration; nothing was changed. {shown}.",
            remedy=f"--output with another folder, or {owner.resume} {run}, which resumes with its own settings",
        )


def write_settings(file: Path, settings: Mapping[str, Any], owner: Owner) -> None:
    """Writes a settings file that steps read, unless it exists.

    Raises:
        ConfigError: The file exists with other settings.
    """
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        write_json(file, wanted)
    elif found := differences(wanted, read_document(file)):
        run = file.parents[1]
        if (begun := place_of(run)).resolve() != run.resolve():
            raise ConfigError(
                f"{run} was started as {begun}, and its steps use file paths relative to it. {'; '.join(found)}.",
                remedy=f"mv {run} {begun if begun.is_absolute() else run.with_name(begun.name)}, and resume it there",
            )
        raise ConfigError(
            f"{file} has changed since the {owner.command} was started. {'; '.join(found)}.",
            remedy=f"mv {file} {file}.changed, then it is written again; for other settings, choose another --output",
        )


def check_variables(*files: Path) -> None:
    """Checks that no environment variable or .env entry, which take precedence, differs from these settings files.

    Raises:
        ConfigError: A variable differs; the message shows it.
    """
    for file in files:
        loaded, stated = load_settings(files=[file]), flat(read_document(file))
        found = flat(to_public_dict(loaded.settings))
        differing = {
            origin.rpartition(" ")[2]: f"{path}: {stated.get(path, 'unset')}, now {found.get(path)} by {origin}"
            for path, origin in loaded.origins.items()
            if origin.startswith(("environment", ".env")) and found.get(path) != stated.get(path)
            if not is_secret(path.rpartition(".")[2])
        }
        if differing:
            raise ConfigError(
                f"The steps would not use the settings of {file}. {'; '.join(differing.values())}.",
                remedy=f"unset {' '.join(differing)} (also in .env); for other settings, choose another --output",
            )


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns the differences as text, such as `training.train.iterations: 24, now 2`."""
    old, new = flat(recorded), flat(wanted)
    paths = [path for path in dict.fromkeys((*old, *new)) if old.get(path) != new.get(path)]
    return [f"{path}: {old.get(path, 'unset')}, now {new.get(path, 'unset')}" for path in paths]


def check_secrets(loaded: Loaded) -> None:
    """Checks that no secret is set by a file or flag: these settings are written to files, without secrets.

    Raises:
        ConfigError: A secret is set; the message does not show it.
    """
    for path, origin in loaded.origins.items():
        leaf = path.rpartition(".")[2]
        if is_secret(leaf) and not origin.startswith(("environment", ".env", "default")):
            raise ConfigError(
                f"{path} ({origin}) is a secret, and a pipeline writes its settings to files.",
                remedy=f"set it as FINQA_{path.replace('.', '__').upper()} in the environment or in .env",
            )


def check_options(settings: Settings) -> None:
    """Raises a ConfigError if a component of the settings or one of its options is unknown."""
    named = {name: value for name, value in settings if isinstance(value, Choice)}
    if settings.reward.name == ENVIRONMENT:
        del named["reward"]  # no component
    choices = [*named.items(), *(("tracker", choice) for choice in settings.trackers)]
    for kind, choice in choices:
        registry().config(registry().find(KINDS.get(kind, kind), choice.name), choice.options)
