"""Versions that recorded settings name: of the grading profile `strict`, of the judge, and of the codec `auto`.

`strict` means the newest version, so the meaning of a record with only `strict` would change with the next version.
Therefore records name the version. A record with the bare name was written before there were versions, and means the
first version. `strict` is the default of the rewards `_WITH_PROFILE`, which read answers by the first version when
there was no other. So a record of these without a profile also means the first version, unless a file specifies them.
The default grader depends on the data, and records name it; one without a grader was written when the default was that
of `_GRADERS_BEFORE`.

The codec `auto` follows every chat template since its version 2. A record without a version was written before, and
means version 1, so that a policy keeps the format of turns that it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.grading import JUDGE, REMOVED, STRICT, STRICT_BEFORE_VERSIONS, versioned

_BARE = "strict"
_GRADED = "graded"
_WITH_PROFILE = frozenset({_GRADED, "weighted", "ternary"})
_AUTO, _VERSION = "auto", "version"
_CODEC, _CODEC_BEFORE_VERSIONS = 2, 1
_PROFILES = (("environment", "grader"), ("reward", "profile"))
"""Sections of settings with a grading profile, and its option."""
_GRADERS_BEFORE = {"finqa": "openenv", "finqa-text": STRICT_BEFORE_VERSIONS, "convfinqa": STRICT_BEFORE_VERSIONS}
"""Environment -> the grader that a record without one means."""


def with_versions(public: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a record, in which `strict` and the codec `auto` name their newest versions."""
    return _with_codec(_named(public, STRICT), _CODEC)


def from_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings, in which a bare `strict` or `auto` names the version that it meant when written."""
    return _with_codec(_named(recorded, STRICT_BEFORE_VERSIONS), _CODEC_BEFORE_VERSIONS)


def removed_profile(recorded: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return path and name of a grading profile that was removed since the settings were recorded; None without one."""
    for section, option in _PROFILES:
        choice = recorded.get(section)
        options = choice.get("options") if isinstance(choice, Mapping) else None
        profile = options.get(option) if isinstance(options, Mapping) else None
        if isinstance(profile, str) and profile in REMOVED:
            return f"{section}.options.{option}", profile
    return None


def rewards_before_versions(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the forms in which a reward's facts may have been recorded before there were versions.

    The list is empty for rewards and profiles of which there were no records then.

    Args:
        facts: `name`, `options` and `specification` of a reward.
    """
    options, specification = dict(facts.get("options") or {}), facts.get("specification") or {}
    if facts.get("name") not in _WITH_PROFILE or specification.get("profile") != STRICT_BEFORE_VERSIONS:
        return []
    unnamed = {key: value for key, value in options.items() if key != "profile"}
    if facts["name"] != _GRADED:
        plain = {key: value for key, value in specification.items() if key != "profile"}
        return [{**facts, "options": unnamed, "specification": plain}]
    before = {**facts, "specification": {**specification, "profile": _BARE}}
    return [{**before, "options": unnamed}, {**before, "options": {**options, "profile": _BARE}}]


def with_grader(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with the grader that its environment had by default; see `_GRADERS_BEFORE`."""
    choice = settings.get("environment")
    options = choice.get("options") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(options, Mapping) or options.get("url"):
        return dict(settings)  # a running server has its own rules
    before = _GRADERS_BEFORE.get(str(choice.get("name")))
    if before is None or "grader" in options:
        return dict(settings)
    return {**settings, "environment": {**choice, "options": {**options, "grader": before}}}


def _with_codec(settings: dict[str, Any], version: int) -> dict[str, Any]:
    choice = settings.get("codec")
    if not isinstance(choice, Mapping) or choice.get("name") != _AUTO:
        return settings
    options = choice.get("options")
    named = {_VERSION: version, **(options if isinstance(options, Mapping) else {})}
    return {**settings, "codec": {**choice, "options": named}}


def _named(settings: Mapping[str, Any], version: str) -> dict[str, Any]:
    found = dict(settings)
    for section, option in _PROFILES:
        choice = found.get(section)
        options = choice.get("options") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(options, Mapping):
            continue
        read = section == "reward" and choice.get("name") in _WITH_PROFILE
        is_default = read and option not in options and not options.get("spec")
        is_bare = options.get(option) == _BARE and (section == "environment" or read)
        if is_default or is_bare:
            found[section] = {**choice, "options": {**options, option: version}}
        elif section == "environment" and options.get(option) == JUDGE:
            found[section] = {**choice, "options": {**options, option: versioned(JUDGE)}}
    return found
