"""`finqa doctor --cluster`: checks all nodes of the cluster and reports the problems of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.diagnostics.node_checks import NodeNeeds, judge_nodes
from finqa_cli.errors import FinqaError
from finqa_cli.settings import Settings, is_embedded
from finqa_cli.types import Check, NodeFacts
from finqa_cli.wiring.cluster_nodes import base_model, on_nodes, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """Result of the checks of a cluster.

    Attributes:
        checks: The findings, those about all nodes first.
        nodes: Replies of the nodes; empty if they cannot be reached.
    """

    checks: tuple[Check, ...]
    nodes: Sequence[NodeFacts] = field(default_factory=tuple)

    @property
    def placed(self) -> list[NodeFacts]:
        """The nodes that engines and learners can be placed on."""
        return [node for node in self.nodes if not (node.controller or node.left or node.problem)]

    @property
    def document(self) -> list[Mapping[str, Any]]:
        """The facts as JSON values, the controller first."""
        return [asdict(node) for node in self.nodes]


def cluster_report(settings: Settings) -> ClusterReport:
    """Check the nodes of `cluster.address`. This takes some seconds, because a process starts on each node."""
    try:
        facts = survey(settings)
        needs = node_needs(settings)
    except FinqaError as error:
        check = Check(name="cluster", status="fail", detail=error.message, remedy=error.remedy)
        return ClusterReport(checks=(check,))
    found = judge_nodes(facts, needs)
    if not on_nodes(settings):
        found.insert(
            0,
            Check(
                name="cluster",
                status="warn",
                detail=f"neither engine {settings.engine.name} nor learner {settings.learner.name} runs on nodes",
                remedy=f"--engine ray:vllm --set learner.name=ray:{settings.learner.name}",
            ),
        )
    return ClusterReport(checks=tuple(found), nodes=facts)


def node_needs(settings: Settings) -> NodeNeeds:
    """Return what a run with these settings needs on nodes.

    Raises:
        FinqaError: There is no such policy.
    """
    address, model = settings.cluster.address, base_model(settings)
    return NodeNeeds(
        address=address if ":" in address else "HOST:PORT",
        model=model,
        folder=Path(model).is_dir(),
        ships=is_embedded(settings.model.name),
    )
