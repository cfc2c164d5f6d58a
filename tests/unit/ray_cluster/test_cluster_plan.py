"""Which nodes get which replicas and learner processes: assigned within nodes, with memory, or refused with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.placement.cluster_plan import plan_on_nodes
from finqa_cli.placement.known_models import known
from finqa_cli.placement.memory_formulas import GIB
from finqa_cli.placement.placement_types import (
    EngineKind,
    Placement,
    Refusal,
    Request,
    Workload,
    plan_document,
    plan_line,
    plan_text,
)
from finqa_cli.settings import PLACED, Settings
from finqa_cli.types import Architecture, CudaDevice, NodeFacts
from finqa_cli.wiring.placing import apply_plan, find_plan

VLLM = EngineKind(name="ray:vllm", spread="several", graphs=GIB)
ONE = EngineKind(name="ray:transformers", spread="one")
WORK = Workload(plays=True, trains=True)


def model(name: str = "Qwen/Qwen3-14B") -> Architecture:
    found = known(name)
    assert found is not None
    return found


def node(name: str, gpus: int = 8, gib: float = 80, cpus: float = 32) -> NodeFacts:
    devices = tuple(CudaDevice(name="GPU", free=gib * GIB, total=gib * GIB) for _ in range(gpus))
    return NodeFacts(address=name, cpus=cpus, gpus=float(gpus), devices=devices, memory=64 * GIB)


def placed(
    nodes: Sequence[NodeFacts], name: str = "Qwen/Qwen3-14B", engine: EngineKind = VLLM, **wishes: Any
) -> Placement:
    found = plan_on_nodes(nodes, model(name), engine, WORK, Request(**wishes))
    assert isinstance(found, Placement), found
    return found


def test_half_of_the_gpus_of_two_nodes_serve_and_half_train() -> None:
    found = placed([node("a"), node("b")])
    assert found.engine is not None and found.learner is not None
    assert found.engine.replicas * found.engine.tensor_parallel_size == found.learner.processes == 8
    assert len({len(one.replicas) for one in found.per_node}) == 1
    assert all(0 < one.replica_gib <= 80 and 0 < one.rank_gib <= 80 for one in found.per_node if one.ranks)
    assert plan_document(found)["per_node"][0]["node"] == "a"
    text = plan_text(found, "ray:vllm")
    assert "node a: replica 0," in text and "of 80 GiB on each GPU" in text
    assert "on 2 nodes" in plan_line(found, "ray:vllm")


def test_replicas_spread_and_processes_pack() -> None:
    found = placed([node("a"), node("b"), node("c")], engine_replicas=3, tensor_parallel_size=2, learner_processes=6)
    assert [one.replicas for one in found.per_node] == [(0,), (1,), (2,)]
    assert sorted(len(one.ranks) for one in found.per_node) == [0, 0, 6]
    assert [one.gpus_free for one in found.per_node].count(0) == 1


def test_a_replica_is_within_one_node_and_what_does_not_fit_is_refused_with_numbers() -> None:
    nodes = [node("10.0.0.7", gpus=3), node("10.0.0.8", gpus=3)]
    found = plan_on_nodes(nodes, model(), VLLM, WORK, Request(tensor_parallel_size=4, engine_replicas=1))
    assert isinstance(found, Refusal)
    assert "no room for 1 engine replica of 4 GPUs each" in found.reason
    assert "10.0.0.7 32 CPUs and 3 GPUs, 10.0.0.8 32 CPUs and 3 GPUs" in found.reason
    assert found.changes == {"model.tensor_parallel_size": None}
    assert placed(nodes, engine_replicas=1).engine is not None


def test_gpus_that_are_too_small_are_refused_with_their_memory() -> None:
    found = plan_on_nodes([node("a", gpus=2, gib=16)], model("Qwen/Qwen3-14B"), VLLM, WORK, Request())
    assert isinstance(found, Refusal) and "GiB" in found.reason and str(found.changes["model.name"]).startswith("Qwen/")


def test_a_cluster_of_cpus_counts_cpus_and_main_memory() -> None:
    nodes = [node("a", gpus=0, cpus=2), node("b", gpus=0, cpus=2)]
    found = placed(nodes, "Qwen/Qwen3-0.6B", ONE, engine_replicas=2, learner_processes=2)
    assert [(one.replicas, len(one.ranks)) for one in found.per_node] in (
        [((0,), 1), ((1,), 1)],
        [((0,), 1), ((1,), 1)],
    )
    assert all(1 < one.replica_gib < 4 and one.gib_total == 64 for one in found.per_node)
    refused = plan_on_nodes(nodes, model("Qwen/Qwen3-0.6B"), ONE, WORK, Request(engine_replicas=9))
    assert isinstance(refused, Refusal) and "9 engine replicas and 1 learner process" in refused.reason
    assert "a 2 CPUs and 0 GPUs, b 2 CPUs and 0 GPUs" in refused.reason
    large = plan_on_nodes(nodes, model("Qwen/Qwen3-32B"), ONE, WORK, Request())
    assert isinstance(large, Refusal) and "would hold" in large.reason and "has 64.0" in large.reason


@given(
    gpus=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    replicas=st.none() | st.integers(1, 6),
    size=st.none() | st.sampled_from([1, 2, 4, 8]),
    processes=st.none() | st.integers(1, 12),
)
def test_no_node_gets_more_than_it_has(
    gpus: list[int], replicas: int | None, size: int | None, processes: int | None
) -> None:
    nodes = [node(str(place), gpus=count) for place, count in enumerate(gpus)]
    wishes = Request(engine_replicas=replicas, tensor_parallel_size=size, learner_processes=processes)
    found = plan_on_nodes(nodes, model("Qwen/Qwen3-4B"), VLLM, WORK, wishes)
    if isinstance(found, Refusal):
        assert found.reason
        return
    assert found.engine is not None and found.learner is not None
    assert replicas in (None, found.engine.replicas) and processes in (None, found.learner.processes)
    assert sorted(number for one in found.per_node for number in one.replicas) == list(range(found.engine.replicas))
    assert sorted(number for one in found.per_node for number in one.ranks) == list(range(found.learner.processes))
    if any(gpus):
        for count, one in zip(gpus, found.per_node, strict=True):
            used = len(one.replicas) * found.engine.tensor_parallel_size + len(one.ranks)
            assert used + one.gpus_free == count
            assert one.replica_gib <= 80 and one.rank_gib <= 80


def test_the_plan_of_settings_is_applied() -> None:
    settings = Settings.model_validate(
        {"engine": {"name": "ray:vllm"}, "learner": {"name": "ray:torch"}, "model": {"name": "Qwen/Qwen3-4B"}}
    )
    found = find_plan(settings, PLACED, "train", (), [node("a", 4), node("b", 4)])
    assert isinstance(found, Placement)
    after = apply_plan(settings, PLACED, found)
    assert after.generation.engine_replicas * after.model.tensor_parallel_size + after.train.learner_processes == 8
    assert after.model.engine_devices == () and after.train.max_staleness == 1


def test_what_runs_here_is_planned_here() -> None:
    settings = Settings.model_validate(
        {"engine": {"name": "ray:vllm"}, "learner": {"name": "torch"}, "model": {"name": "Qwen/Qwen3-4B"}}
    )
    found = find_plan(settings, PLACED, "train", (), [node("a", 4)])
    assert isinstance(found, Placement) and found.engine is not None
    assert found.engine.replicas == 4 and not any(one.ranks for one in found.per_node)


@pytest.mark.parametrize("cpus", [0.0, 0.5])
def test_nodes_without_a_cpu_get_nothing(cpus: float) -> None:
    found = plan_on_nodes([node("head", cpus=cpus)], model(), VLLM, WORK, Request())
    assert isinstance(found, Refusal) and "has a CPU" in found.reason
