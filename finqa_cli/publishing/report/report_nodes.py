"""What a report shows of the nodes of a cluster: what runs where, and what was lost and is back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.masking import masked
from finqa_cli.runs.run_nodes import NodeState, RunNodes, time_text

LOST, BACK = "fault", "right"
"""Classes of the page for what is lost and for what is back."""

_NAMES = {
    "engine_left_out": "left out",
    "engine_away": "does not answer",
    "engine_back": "back",
    "worker_lost": "lost",
    "worker_back": "back",
}


def nodes_document(nodes: RunNodes) -> dict[str, Any] | None:
    """Returns the nodes and what changed on them; None for a run on one machine.

    Returns:
        `nodes` of [address, engine replicas, numbers of learner processes, rollout workers], in which replicas and
        workers are [number, state in words, class]; `changes` of [time, node, what, state, class, reason].
    """
    if not (states := nodes.states()):
        return None
    return {"nodes": [_node(state) for state in states], "changes": [_change(record) for record in nodes.changes]}


def _node(state: NodeState) -> list[Any]:
    replicas = [[one.number, one.text, LOST if one.left_out else BACK if one.back else ""] for one in state.replicas]
    workers = [[number, "lost", LOST] if number in state.lost else [number, "", ""] for number in state.workers]
    return [state.node, replicas, list(state.ranks), workers]


def _change(record: Mapping[str, Any]) -> list[Any]:
    name = str(record["event"])
    kind = "engine replica" if name.startswith("engine_") else "rollout worker"
    number = record.get("replica" if name.startswith("engine_") else "worker")
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return [
        time_text(record.get("time"), "%Y-%m-%d %H:%M:%S"),
        str(record.get("node") or ""),
        f"{kind} {number}" if is_number else kind,
        _NAMES[name],
        BACK if name.endswith("_back") else LOST,
        str(masked(str(record.get("reason") or ""))),
    ]
