"""What the clusters of an evaluation are, in words: companies, questions, dates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry

UNKNOWN = "cluster"


def cluster_noun(environment: str, options: Mapping[str, Any]) -> str:
    """In the singular, as the environment's plugin says; `cluster` where it says nothing or is not installed here."""
    try:
        component = registry().find("environment", environment)
        config = registry().config(component, options)
    except (ConfigError, ImportError):  # not here, or another version of it
        return UNKNOWN
    noun = component.clustered_by
    if noun.startswith("{"):
        noun = str(getattr(config, noun.strip("{}"), ""))
    return noun or UNKNOWN


def plural_noun(noun: str) -> str:
    """`companies`, `questions`."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def counted(clusters: int, noun: str) -> str:
    """`1 company`, `8 questions`."""
    return f"{clusters} {noun if clusters == 1 else plural_noun(noun)}"


def alike(noun: str) -> str:
    """What is right or wrong together, and therefore clustered."""
    return "attempts at one question" if noun == "question" else f"questions of one {noun}"
