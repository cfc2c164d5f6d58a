"""How a sandbox is marked in the service, which knows only tags: plain strings. A search finds what has all its tags.

`finqa` marks a sandbox as ours, `finqa-<12 hex digits>` is its name, `job-<run>` and `problem-<task>` are for
readers of the console, and `label:<name>=<value>` are the labels that it was started with.
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
    """A unique name, by which a sandbox is searched if the reply to its create is lost."""
    return f"finqa-{secrets.token_hex(6)}"


def is_name(text: str) -> bool:
    """Whether the text is a name of finqa, not an id of the service."""
    return _NAME.fullmatch(text) is not None


def creation_tags(name: str, labels: Mapping[str, str], problem: str) -> list[str]:
    """All tags of a new sandbox; an empty `problem` gets no tag."""
    people = [f"job-{labels[RUN_LABEL]}"] if RUN_LABEL in labels else []
    people += [f"problem-{problem}"] if problem else []
    return [OURS, name, *people, *_label_tags(labels)]


def search_tags(labels: Mapping[str, str]) -> list[str]:
    """Tags that only finqa's sandboxes with all these labels have."""
    return [OURS, *_label_tags(labels)]


def name_in(tags: Iterable[str]) -> str | None:
    """The name of a sandbox of finqa; None for any other sandbox."""
    marks = tuple(tags)
    return next((tag for tag in marks if is_name(tag)), None) if OURS in marks else None


def labels_in(tags: Iterable[str]) -> Mapping[str, str]:
    """The labels with which a sandbox was started."""
    found = (_LABEL.fullmatch(tag) for tag in tags)
    return {match["name"]: match["value"] for match in found if match}


def _label_tags(labels: Mapping[str, str]) -> Sequence[str]:
    return [f"label:{name}={value}" for name, value in labels.items()]
