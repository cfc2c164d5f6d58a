"""The version of the grading profile `strict` in recorded settings.

`strict` means the newest version, so the meaning of a record with only `strict` would change with the next version.
Therefore records name the version. A record with the bare name was written before there were versions, and means the
first version. `strict` is the default of the reward `graded`, and was its default then. So a record of this reward
without a profile also means the first version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.grading import STRICT, STRICT_BEFORE_VERSIONS

_BARE = "strict"
_GRADED = "graded"


def with_versions(public: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a record, with `strict` replaced by the newest version."""
    return _named(public, STRICT)


def from_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings, with a bare `strict` replaced by the version that it meant when they were written."""
    return _named(recorded, STRICT_BEFORE_VERSIONS)


def rewards_before_versions(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the forms in which a reward's facts may have been recorded before there were versions.

    The list is empty for rewards other than `graded` and for other profiles.

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
