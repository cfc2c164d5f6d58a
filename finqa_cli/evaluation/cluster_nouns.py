"""Names of the clusters of an evaluation: companies, questions, dates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry

UNKNOWN = "cluster"
"""Noun for the clusters of an environment that declares none."""


def cluster_noun(environment: str, options: Mapping[str, Any]) -> str:
    """Returns the singular noun that the environment declares; `cluster` if it declares none or is not installed."""
    try:
        component = registry().find("environment", environment)
        config = registry().config(component, options)
    except (ConfigError, ImportError):  # not installed here, or in another version
        return UNKNOWN
    noun = component.clustered_by
    if noun.startswith("{"):
        noun = str(getattr(config, noun.strip("{}"), ""))
    return noun or UNKNOWN


def plural_noun(noun: str) -> str:
    """Forms the plural: `companies`, `questions`."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def counted(clusters: int, noun: str) -> str:
    """Returns number and noun: `1 company`, `8 questions`."""
    return f"{clusters} {noun if clusters == 1 else plural_noun(noun)}"


def clustered_by(noun: str) -> str:
    """Names how an interval is computed: `clustered by company`."""
    return f"clustered by {'groups of tasks' if noun == UNKNOWN else noun}"


def alike(noun: str) -> str:
    """Returns a phrase for what is correlated, and therefore in one cluster."""
    return "attempts at one question" if noun == "question" else f"questions of one {noun}"
