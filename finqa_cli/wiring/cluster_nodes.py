"""The nodes of the cluster that engine and learner of the settings run on, as the plugin of the cluster finds them."""

from __future__ import annotations

from finqa_cli.errors import ConfigError, ServiceUnavailableError
from finqa_cli.extend import registry
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import NodeFacts
from finqa_cli.wiring.policies import resolve

LOCAL = "local"
"""Address of a cluster that is started when the run starts."""


def on_nodes(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return kind and name of the engine and the learner, of those that run on the nodes of a cluster."""
    chosen = (("engine", settings.engine.name), ("learner", settings.learner.name))
    return tuple((kind, name) for kind, name in chosen if registry().find(kind, name).elsewhere)


def base_model(settings: Settings) -> str:
    """Return folder or hub id of the model that the nodes need; empty where nothing runs on them.

    Raises:
        FinqaError: There is no such policy.
    """
    return resolve(settings.model.name).model if on_nodes(settings) else ""


def reached_nodes(settings: Settings) -> list[NodeFacts]:
    """Return what a placement counts on of each node: CPUs, GPUs and memory.

    Nothing where nothing runs on nodes, or no cluster can be reached: the start of the engine or learner reports the
    reason.
    """
    if not on_nodes(settings) or settings.cluster.address == LOCAL:
        return []
    try:
        return [node for node in survey(settings, brief=True) if not node.controller and not node.left]
    except (ConfigError, ServiceUnavailableError):
        return []


def survey(settings: Settings, *, brief: bool = False) -> list[NodeFacts]:
    """Return facts of this process, then of each node; takes some seconds, as a process starts on each.

    Args:
        settings: Name the cluster, and what is to run on it.
        brief: Return sizes only; a process starts on nodes with GPUs alone.

    Raises:
        MissingDependencyError: What connects to clusters is not installed.
        ServiceUnavailableError: There is no cluster at the address.
        ConfigError: The cluster runs other versions, or no plugin knows clusters.
        FinqaError: There is no such policy.
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
        raise ConfigError("No installed plugin connects to clusters.", remedy="pip install 'finqa[ray]'")
    return found
