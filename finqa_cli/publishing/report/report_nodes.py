"""What a report shows of the nodes of a cluster: what runs on each, what was lost and what was recovered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.masking import masked
from finqa_cli.runs.run_nodes import NodeState, RunNodes, time_text

LOST, BACK = "fault", "right"
"""CSS classes of the page for lost and for recovered parts."""

_NAMES = {
    "engine_left_out": "left out",
    "engine_away": "does not answer",
    "engine_back": "back",
    "worker_lost": "lost",
    "worker_back": "back",
}


def nodes_document(nodes: RunNodes) -> dict[str, Any] | None:
    """Returns the nodes and the changes of their state; None for a run on one machine.

    Returns:
        `nodes`, a list of [address, engine replicas, numbers of learner processes, rollout workers], in which replicas
        and workers are [number, state in words, class]; and `changes`, a list of [time, node, part, state, class,
        reason].
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
