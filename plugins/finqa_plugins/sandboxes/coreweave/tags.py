"""How a sandbox is marked in the service, whose only marks are tags: plain strings, all of which a search must name.

`finqa` marks a sandbox as ours, `finqa-<12 hex digits>` is its name, `job-<run>` and `problem-<task>` are for
people who look into the console, and `label:<name>=<value>` are the labels that it was started with.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence

OURS = "finqa"
RUN_LABEL = "finqa.run"
PROBLEM_LABEL = "problem"
_NAME = re.compile(r"finqa-[0-9a-f]{12}")
_LABEL = re.compile(r"label:(?P<name>[^=]*)=(?P<value>.*)", re.S)


def new_name() -> str:
    """A name that no other sandbox has: what is looked for where the reply to a create got lost."""
    return f"finqa-{secrets.token_hex(6)}"


def is_name(text: str) -> bool:
    """Whether it is a name of finqa, and not an id of the service."""
    return _NAME.fullmatch(text) is not None


def creation_tags(name: str, labels: Mapping[str, str], problem: str) -> list[str]:
    """All tags of a new sandbox. An empty `problem` gives none."""
    people = [f"job-{labels[RUN_LABEL]}"] if RUN_LABEL in labels else []
    people += [f"problem-{problem}"] if problem else []
    return [OURS, name, *people, *_label_tags(labels)]


def search_tags(labels: Mapping[str, str]) -> list[str]:
    """Tags that exactly our sandboxes with all these labels carry."""
    return [OURS, *_label_tags(labels)]


def name_in(tags: Iterable[str]) -> str | None:
    """The name of a sandbox of finqa; None for a stranger's."""
    marks = tuple(tags)
    return next((tag for tag in marks if is_name(tag)), None) if OURS in marks else None


def labels_in(tags: Iterable[str]) -> Mapping[str, str]:
    """The labels that a sandbox was started with."""
    found = (_LABEL.fullmatch(tag) for tag in tags)
    return {match["name"]: match["value"] for match in found if match}


def _label_tags(labels: Mapping[str, str]) -> Sequence[str]:
    return [f"label:{name}={value}" for name, value in labels.items()]
