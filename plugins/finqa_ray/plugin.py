"""Finds `ray:NAME`: engine or learner NAME on the nodes of a Ray cluster. Places rollout workers and shares quotas.

Ray is not imported before it is used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from finqa_cli.contracts import AccountQuota
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend import Component, hookimpl, registry
from finqa_cli.types import Check, NodeFacts, NodeNeeds

PREFIX = "ray:"

_PACKAGE = "finqa_ray"
_TARGETS = {"engine": f"{_PACKAGE}.ray_engine", "learner": f"{_PACKAGE}.ray_learner"}


@hookimpl
def find_component(kind: str, name: str) -> Component | None:
    """Return `ray:NAME` for an engine or a learner NAME, with its options; None for other names.

    Raises:
        ConfigError: There is no NAME, or it runs no model.
    """
    if kind not in _TARGETS or not name.startswith(PREFIX):
        return None
    inner = registry().find(kind, name.removeprefix(PREFIX))
    if inner.modelless or inner.remote:
        raise ConfigError(
            f"Engine {inner.name!r} runs no model, so a Ray cluster has nothing to place.",
            remedy=f"--engine {inner.name}",
        )
    return replace(
        inner,
        name=name,
        target=f"{_TARGETS[kind]}:{inner.name}",
        summary=f"{inner.name} on the nodes of a Ray cluster",
        requires=("ray",),
        extra="ray",
        readiness="",
        venv=None,
        elsewhere=True,
        sleeps=False,
    )


@hookimpl
def name_on_cluster(kind: str, name: str) -> str:
    """Return `ray:NAME` for an engine or a learner NAME."""
    return name if name.startswith(PREFIX) else f"{PREFIX}{name}"


@hookimpl
def judge_nodes(facts: Sequence[NodeFacts], needs: NodeNeeds) -> list[Check]:
    """Return checks of the nodes of a Ray cluster."""
    from finqa_ray import node_checks

    return node_checks.judge_nodes(facts, needs)


@hookimpl
def share_quota(account: str, limit: int, window_s: float, cluster: str) -> AccountQuota:
    """Return the quota of an account that is shared over the cluster."""
    from finqa_ray.ray_quota import RayQuota

    return RayQuota(account, limit, window_s, cluster)


@hookimpl
def make_players(request: Any) -> Any:
    """Return players in rollout workers on the nodes of a Ray cluster; see `workers.worker_setup.RemotePlayers`."""
    from finqa_ray.workers.worker_setup import RemotePlayers

    return RemotePlayers(request)


@hookimpl
def survey_nodes(
    address: str, model: str, components: Sequence[tuple[str, str]], settings: Mapping[str, Any], brief: bool
) -> list[NodeFacts]:
    """Join the cluster and collect facts about each node; with `brief` only the resources.

    Raises:
        MissingDependencyError: Ray is not installed.
        ServiceUnavailableError: There is no cluster at the address.
        ConfigError: The cluster has another version of Ray or Python.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("A cluster needs ray, which is not installed.", remedy="pip install 'finqa[ray]'")
    from finqa_ray.node_survey import measure, survey

    if brief:
        return measure(address)
    return survey(address, model, [(kind, name.removeprefix(PREFIX)) for kind, name in components], settings)
