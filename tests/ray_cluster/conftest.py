"""Without Ray, which `make test-ray` installs beside the product, every test of this folder skips."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.nodes import Cluster, running_cluster

from finqa_cli.testing.contract.engine_play import make_adapter
from finqa_cli.testing.tiny_models import make_tiny_qwen3

TIMEOUT_S = 420
JOIN_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/ray_cluster/"):
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes of two CPUs, beside the head."""
    pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # for the nodes, which inherit it
    with running_cluster() as started:
        yield started


@pytest.fixture
def two_nodes(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with two live nodes, and this process connected to it."""
    from finqa_plugins.ray_cluster import cluster as connection

    joined = join_started(cluster.address)
    try:
        for _ in range(2 - sum(node.running() for node in cluster.nodes)):
            cluster.add()
        wait_for_nodes(2)
        yield cluster
    finally:
        connection.leave(joined)


def join_started(address: str) -> Any:
    """Joins a cluster whose head may still be starting: its port is open before the head is registered."""
    from finqa_cli.errors import ServiceUnavailableError
    from finqa_plugins.ray_cluster import cluster as connection

    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            return connection.join(address)
        except ServiceUnavailableError:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def one_place_a_node(two_nodes: Cluster) -> Iterator[Cluster]:
    """One CPU of each node is taken, so that two ranks are on two nodes."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1.0}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(30)
    yield two_nodes
    remove_placement_group(group)


def live_nodes(ray: object) -> list[str]:
    """Addresses of the nodes with CPUs."""
    nodes = ray.nodes()  # type: ignore[attr-defined]
    return [node["NodeManagerAddress"] for node in nodes if node["Alive"] and "CPU" in node["Resources"]]


def wait_for_nodes(count: int) -> None:
    """Waits until so many nodes with CPUs have joined the cluster of this process."""
    import ray

    wait_for(lambda: len(live_nodes(ray)) == count, JOIN_S)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Looks until something is so; fails when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("ray-model") / "model")


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ray-adapters")
    return [make_adapter(tiny_model, folder / str(seed), seed=seed) for seed in range(5)]
