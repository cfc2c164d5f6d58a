"""Nodes of a run, from its events: what runs where, what is left out and what is back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.commands.recorded.show_run import node_text
from finqa_cli.commands.recorded.watch_run import frame
from finqa_cli.publishing.report.report_data import nodes_document
from finqa_cli.publishing.report.report_page import escape_json
from finqa_cli.runs.live_run import LiveRun
from finqa_cli.runs.run_nodes import FOLLOWED, NodeState, ReplicaState, RunNodes, time_text
from finqa_cli.runs.run_notes import read_notes

EVENTS: list[dict[str, Any]] = [
    {"event": "run_start", "time": 1.0},
    {"event": "engine_nodes", "time": 2.0, "nodes": ["10.0.0.7", "10.0.0.8"]},
    {"event": "learner_nodes", "time": 2.0, "nodes": ["10.0.0.8", "10.0.0.8"]},
    {"event": "weights", "time": 3.0, "version": 3},
    {"event": "engine_left_out", "time": 4.0, "replica": 1, "node": "10.0.0.8", "reason": "gone"},
    {"event": "worker_lost", "time": 4.5, "worker": 2, "node": "10.0.0.8", "reason": "gone"},
    {"event": "weights", "time": 5.0, "version": 4},
]
BACK = {"event": "engine_back", "time": 6.0, "replica": 1, "node": "10.0.0.9", "version": 4}


def followed(*events: dict[str, Any]) -> tuple[NodeState, ...]:
    nodes = RunNodes()
    for event in events:
        nodes.take(event)
    return nodes.states()


def write(folder: Path, *events: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"command": "train", "status": "running", "schema_version": 1}))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_replica_that_is_left_out_keeps_its_version_until_it_is_back() -> None:
    first, second = followed(*EVENTS)
    assert first == NodeState(node="10.0.0.7", replicas=(ReplicaState(number=0, version=4),))
    assert second.replicas == (ReplicaState(number=1, version=3, left_out=True, left_at=4.0),)
    assert (second.ranks, second.workers, second.lost) == ((0, 1), (2,), (2,))
    text = node_text(second)
    assert (
        text.startswith("10.0.0.8: engine 1 left out since ")
        and "learner process 0, 1; rollout worker 2 (lost)" in text
    )
    after = followed(*EVENTS, BACK, {"event": "worker_back", "worker": 2, "node": "10.0.0.7"})
    assert [node.node for node in after] == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]
    assert after[2].replicas == (ReplicaState(number=1, version=4, back=True),)
    assert node_text(after[2]) == "10.0.0.9: engine 1 serves version 4 again"
    assert (after[0].workers, after[0].lost, after[1].workers) == ((2,), (), ())


def test_the_only_replica_is_away_and_back() -> None:
    events = [EVENTS[0], {"event": "engine_nodes", "nodes": ["10.0.0.7"]}, {"event": "engine_away", "version": 1}]
    (away,) = followed(*events)
    assert away.replicas[0].left_out
    (back,) = followed(*events, {"event": "engine_back", "version": 1})
    assert back.replicas == (ReplicaState(number=0, version=1, back=True),)


def test_a_resumed_run_begins_without_nodes_and_a_run_on_one_machine_has_none() -> None:
    assert followed(*EVENTS, {"event": "run_start"}) == ()
    assert (
        followed({"event": "run_start"}, {"event": "weights", "version": 1}, {"event": "engine_left_out", "replica": 0})
        == ()
    )


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": st.sampled_from(sorted(FOLLOWED))},
            optional={
                "nodes": st.lists(st.sampled_from("ab"), max_size=3) | st.none(),
                "node": st.sampled_from("abc") | st.none(),
                "replica": st.integers(-1, 3) | st.text(max_size=1),
                "worker": st.integers(0, 2) | st.none(),
                "version": st.integers(0, 9) | st.none(),
                "time": st.floats() | st.none(),
            },
        ),
        max_size=12,
    )
)
def test_any_events_give_each_replica_one_node(events: list[dict[str, Any]]) -> None:
    nodes = RunNodes()
    for event in events:
        nodes.take(event)
    numbers = [replica.number for node in nodes.states() for replica in node.replicas]
    assert len(numbers) == len(set(numbers))
    assert escape_json(nodes_document(nodes)) and all(map(node_text, nodes.states()))


def test_workers_are_placed_before_one_is_lost_and_no_time_is_no_text() -> None:
    placed = [{"event": "worker_placed", "worker": number, "node": "ab"[number]} for number in (0, 1)]
    first, second = followed(*placed, {"event": "worker_lost", "worker": 1, "node": "b"})
    assert (first.workers, first.lost, second.workers, second.lost) == ((0,), (), (1,), (1,))
    assert [time_text(each, "%Y") for each in (None, "x", float("nan"), 1e300)] == [""] * 4


def test_top_and_show_name_the_nodes(tmp_path: Path) -> None:
    run = write(tmp_path / "run", *EVENTS)
    state = LiveRun(run).look()
    assert state.nodes == read_notes(run).nodes == followed(*EVENTS)
    shown = frame_text(state)
    assert "10.0.0.7: engine 0 serves version 4" in shown and "10.0.0.8: engine 1 left out since" in shown
    assert "engine_nodes" not in state.troubles and state.engine["event"] == "weights"
    plain = LiveRun(write(tmp_path / "plain", EVENTS[0], EVENTS[3])).look()
    assert plain.nodes == () and "nodes" not in frame_text(plain)


def frame_text(state: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(frame(state))
    return captured.get()
