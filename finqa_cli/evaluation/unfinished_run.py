"""Finds the unfinished evaluation of an earlier, equal command, so that the command can continue it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.links import located
from finqa_cli.runs.run_folder import MANIFEST, policy_inputs, read_run, read_settings
from finqa_cli.settings import Settings, from_public_dict, to_public_dict
from finqa_cli.settings.offered import is_operational
from finqa_cli.types import PolicyVersion

TARGET = "target"
"""Key of run.json for what is evaluated."""

UNFINISHED = ("interrupted", "failed", "crashed")
_LONGEST_VALUE = 60


def find_unfinished(base: Path, target: str, settings: Settings, policy: PolicyVersion) -> Path | None:
    """Return the newest unfinished evaluation of this policy with these settings; None if there is none.

    Args:
        base: Folder of the run folders.
        target: Policy or engine that plays, as it was typed.
        settings: Resolved settings.
        policy: The policy that the target is now; an evaluation of other weights under the same name does not count.
    """
    found = sorted(base.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    begun = [file.parent for file in found if _is_unfinished(file.parent, target)]
    same = (run for run in begun if not compare_settings(run, settings))
    digest = policy_inputs(policy)["sha256"] if begun else None
    return next((run for run in same if read_run(run).get("policy digest") == (digest or policy.model or target)), None)


def check_same(run: Path, target: str, settings: Settings) -> bool:
    """Return whether a folder contains an evaluation that this command continues.

    Args:
        run: The folder that the command names.
        target: Policy or engine that plays, as it was typed.
        settings: Resolved settings.

    Raises:
        ConfigError: The folder contains an unfinished evaluation of another policy or with other settings; the message
            lists the differences.
    """
    if read_document(run / "run.json").get("command") != "eval" or read_run(run)["status"] not in UNFINISHED:
        return False
    if (known := stored_target(run)) is None:
        return False
    differences = [f"the policy is {target}, not {known}"] if known != target else []
    differences += compare_settings(run, settings)
    if differences:
        raise ConfigError(
            f"{run} contains an unfinished evaluation with other settings: {'; '.join(differences)}.",
            remedy=f"finqa eval --resume {run}, which uses its settings, or choose another --run-dir",
        )
    return True


def stored_target(run: Path) -> str | None:
    """Return the policy or engine that an evaluation plays, as a path from this working directory; None if unknown."""
    facts = read_document(run / "run.json")  # evaluations of earlier versions have it in their manifest only
    target = facts.get(TARGET, read_document(run / MANIFEST).get("parameters", {}).get("target"))
    if target in {component.name for component in registry().components("engine")}:
        return str(target)  # even if a folder has the same name
    return None if target is None else str(located(run, target))


def compare_settings(run: Path, settings: Settings) -> list[str]:
    """Return the differences of settings from those of a run, as `NAME is NEW, not OLD`.

    Settings that cannot change results do not count: those of `run.` and those that `is_operational` names.

    Settings that this version cannot read count as different: the error is the difference.
    """
    try:
        before = dict(_flat(to_public_dict(from_public_dict(read_settings(run)))))
    except FinqaError as error:
        return [error.message]
    now = dict(_flat(to_public_dict(settings)))
    names = [name for name in now | before if not (name.startswith("run.") or is_operational(name))]
    return [
        f"{name} is {_shown(now.get(name))}, not {_shown(before.get(name))}"
        for name in names
        if now.get(name) != before.get(name)
    ]


def _is_unfinished(run: Path, target: str) -> bool:
    try:
        return (
            read_run(run).get("command") == "eval"
            and read_run(run)["status"] in UNFINISHED
            and stored_target(run) == target
        )
    except FinqaError:
        return False  # other commands report a damaged folder


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(item) if isinstance(item, tuple) else item


def _shown(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
