"""Facts of the cluster nodes on which engine and learner of the settings run, from the cluster's plugin."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.errors import ConfigError, ServiceUnavailableError
from finqa_cli.extend import registry
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import Check, NodeFacts, NodeNeeds
from finqa_cli.wiring.policies import resolve

LOCAL = "local"
"""Value of `cluster.address` for a cluster that is started when the run starts."""


def on_nodes(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return kind and name of engine and learner, as far as they run on the nodes of a cluster."""
    chosen = (("engine", settings.engine.name), ("learner", settings.learner.name))
    return tuple((kind, name) for kind, name in chosen if registry().find(kind, name).elsewhere)


def base_model(settings: Settings) -> str:
    """Return folder or hub id of the model that the nodes need; empty if nothing runs on them.

    Raises:
        FinqaError: The policy of the settings does not exist.
    """
    return resolve(settings.model.name).model if on_nodes(settings) else ""


def reached_nodes(settings: Settings) -> list[NodeFacts]:
    """Return the facts of each node that a placement needs: CPUs, GPUs and memory.

    The list is empty if nothing runs on nodes, or if no cluster can be reached; then the start of the engine or learner
    reports the reason.
    """
    if not on_nodes(settings) or settings.cluster.address == LOCAL:
        return []
    try:
        return [node for node in survey(settings, brief=True) if not node.controller and not node.left]
    except (ConfigError, ServiceUnavailableError):
        return []


def survey(settings: Settings, *, brief: bool = False) -> list[NodeFacts]:
    """Return facts of this process, then of each node. It takes some seconds, because a process starts on each node.

    Args:
        settings: Settings of the cluster, and of the components that run on it.
        brief: Return sizes only; processes then start only on nodes with GPUs.

    Raises:
        MissingDependencyError: The package that connects to clusters is not installed.
        ServiceUnavailableError: There is no cluster at the address.
        ConfigError: The cluster runs other versions, or no plugin connects to clusters.
        FinqaError: The policy of the settings does not exist.
    """
    found: list[NodeFacts] | None = registry().first(
        "survey_nodes",
        list,
        address=settings.cluster.address,
        model="" if brief else base_model(settings),
        components=on_nodes(settings),
        settings=to_public_dict(settings),
        brief=brief,
    )
    if found is None:
        raise _no_clusters()
    return found


def judge_nodes(facts: Sequence[NodeFacts], needs: NodeNeeds) -> list[Check]:
    """Return checks about all nodes, then those about each node.

    Raises:
        ConfigError: No plugin connects to clusters.
    """
    checks: list[Check] | None = registry().first("judge_nodes", list, facts=facts, needs=needs)
    if checks is None:
        raise _no_clusters()
    return checks


def name_on_cluster(kind: str, name: str) -> str:
    """Return the name under which an engine or learner runs on the nodes of a cluster.

    Raises:
        ConfigError: No plugin connects to clusters.
    """
    there = registry().first("name_on_cluster", str, kind=kind, name=name)
    if there is None:
        raise _no_clusters()
    return there


def _no_clusters() -> ConfigError:
    return ConfigError("No installed plugin connects to clusters.", remedy="pip install 'finqa[ray]'")
