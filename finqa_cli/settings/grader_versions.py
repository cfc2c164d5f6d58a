"""The version of the grading profile `strict` in recorded settings.

`strict` means the newest version, so a record with only `strict` would change its meaning with the next one. What
is recorded names its version; a record with the bare name was written before there were versions and means the first.
The reward `graded` had `strict` as its default then and has it now, so a record without its profile is one of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.grading import STRICT, STRICT_BEFORE_VERSIONS

_BARE = "strict"
_GRADED = "graded"


def with_versions(public: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a record: `strict` is the version that it means today."""
    return _named(public, STRICT)


def from_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings with the version that a bare `strict` meant when they were written."""
    return _named(recorded, STRICT_BEFORE_VERSIONS)


def rewards_before_versions(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what may have been recorded of a reward's facts before there were versions; nothing for other rewards.

    Args:
        facts: `name`, `options` and `specification` of a reward.
    """
    options, specification = dict(facts.get("options") or {}), facts.get("specification") or {}
    if facts.get("name") != _GRADED or options.get("profile") != STRICT_BEFORE_VERSIONS:
        return []
    unnamed = {key: value for key, value in options.items() if key != "profile"}
    before = {**facts, "specification": {**specification, "profile": _BARE}}
    return [{**before, "options": unnamed}, {**before, "options": {**options, "profile": _BARE}}]


def _named(settings: Mapping[str, Any], version: str) -> dict[str, Any]:
    found = dict(settings)
    for section, option in (("environment", "grader"), ("reward", "profile")):
        choice = found.get(section)
        options = choice.get("options") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(options, Mapping):
            continue
        is_default = section == "reward" and choice.get("name") == _GRADED and option not in options
        is_bare = options.get(option) == _BARE and (section == "environment" or choice.get("name") == _GRADED)
        if is_default or is_bare:
            found[section] = {**choice, "options": {**options, option: version}}
    return found
