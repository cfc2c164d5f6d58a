"""Links from a run to the files and folders that it names, which are found from every folder and after a move.

A path is recorded as it was typed, and that means little without the working directory. So `run.json` has under `links`
for each such path where it is as seen from the run, and from the root. Where it leads into a run, the moment of that
run's creation is recorded as well, so that another run in its place is not taken for it.
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
    """Return the link to a path by the text that names it; empty where no file or folder of that name is there."""
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
    """Return the absolute path that a run names, wherever that run is now; None where there is none.

    Runs of before links were recorded are followed from the folders around them, then from the working directory.
    """
    link = read_document(run / "run.json").get(LINKS, {}).get(reference)
    if not isinstance(link, Mapping):
        around = (folder / reference for folder in run.resolve().parents)
        return next((place for place in (*around, Path(reference).absolute()) if reference and place.exists()), None)
    places = (Path(os.path.normpath(run.resolve() / link["near"])), Path(link["absolute"]))
    return next((place for place in places if place.exists() and _created(place) == link["created"]), None)


def located(run: Path, reference: str) -> str:
    """Return a path of a run for use in this working directory: as it was typed, where that leads to the same place."""
    place = follow(run, reference)
    if place is None or place.resolve() == Path(reference).resolve():
        return reference
    return str(place.resolve())


def locate_settings(run: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with its paths for use in this working directory."""
    found = dict(settings)
    for section, field in _SETTINGS:
        if name := _path_in(found, section, field):
            found[section] = {**found[section], field: located(run, name)}
    return found


def _path_in(settings: Mapping[str, Any], section: str, field: str) -> str:
    """Return the setting, if it may be a path: an environment is one in a Python file, and else a name."""
    name = str((settings.get(section) or {}).get(field) or "")
    return "" if section == "environment" and not name.endswith(".py") else name


def enclosing_runs(place: Path) -> Iterator[Path]:
    """Yield the run folders that contain a path, the nearest first; a policy may be three levels below one."""
    return (folder for folder in (place, *place.parents[:3]) if (folder / "run.json").is_file())


def _created(place: Path) -> str | None:
    """Return when the run was created that a path leads into; None outside runs."""
    run = next(enclosing_runs(place), None)
    return None if run is None else read_document(run / "run.json").get("created")
