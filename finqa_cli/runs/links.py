"""Links from a run to the files and folders that it names. They are found from any folder, and after a move.

A path is recorded as it was typed, which is not enough without the working directory. So `links` in `run.json` has for
each path its location relative to the run, and its absolute path. If the path leads into another run, the creation time
of that run is recorded too, so that a different run in its place is not mistaken for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finqa_cli.runs.durable_files import read_document

LINKS = "links"
_SETTINGS = (("model", "name"), ("data", "path"), ("environment", "name"))
"""Settings that may name a path."""


def link_of(run: Path, reference: str) -> dict[str, dict[str, Any]]:
    """Return the link to a path, with the text that names it as the key; empty if the path does not exist."""
    if not reference or not Path(reference).exists():
        return {}
    place = Path(reference).resolve()
    near = os.path.relpath(place, run.resolve())
    return {reference: {"near": near, "absolute": str(place), "created": _created(place)}}


def links_of_settings(run: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the links to the paths that settings name."""
    names = [name for section, field in _SETTINGS if (name := _path_in(settings, section, field))]
    return {reference: link for name in names for reference, link in link_of(run, name).items()}


def follow(run: Path, reference: str) -> Path | None:
    """Return the absolute path behind a path that a run names, even if the run was moved; None if it is not found.

    For runs from before links were recorded, the path is searched relative to the folders around the run, then to the
    working directory.

    Args:
        run: Folder of the run.
        reference: The path as it was typed.
    """
    link = read_document(run / "run.json").get(LINKS, {}).get(reference)
    if not isinstance(link, Mapping):
        around = (folder / reference for folder in run.resolve().parents)
        return next((place for place in (*around, Path(reference).absolute()) if reference and place.exists()), None)
    places = (Path(os.path.normpath(run.resolve() / link["near"])), Path(link["absolute"]))
    return next((place for place in places if place.exists() and _created(place) == link["created"]), None)


def located(run: Path, reference: str) -> str:
    """Return a path that a run names, usable in this working directory: as typed if that still leads to the same place.

    Otherwise it is the absolute path; if that is not found, the path as typed.
    """
    place = follow(run, reference)
    if place is None or place.resolve() == Path(reference).resolve():
        return reference
    return str(place.resolve())


def locate_settings(run: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with paths that are usable in this working directory."""
    found = dict(settings)
    for section, field in _SETTINGS:
        if name := _path_in(found, section, field):
            found[section] = {**found[section], field: located(run, name)}
    return found


def _path_in(settings: Mapping[str, Any], section: str, field: str) -> str:
    """Return the value of a setting if it may be a path, else an empty text. An environment must end in .py."""
    name = str((settings.get(section) or {}).get(field) or "")
    return "" if section == "environment" and not name.endswith(".py") else name


def enclosing_runs(place: Path) -> Iterator[Path]:
    """Yield the run folders that contain a path, the nearest first; a policy may be three levels below one."""
    return (folder for folder in (place, *place.parents[:3]) if (folder / "run.json").is_file())


def _created(place: Path) -> str | None:
    """Return the creation time of the run that contains a path; None outside runs."""
    run = next(enclosing_runs(place), None)
    return None if run is None else read_document(run / "run.json").get("created")
