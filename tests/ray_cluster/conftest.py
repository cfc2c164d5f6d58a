"""Without Ray, which `make test-ray` installs beside the product, every test of this folder skips."""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.nodes import CAN_HIDE, Cluster, running_cluster

from finqa_testing.contract.engine_play import make_adapter
from finqa_testing.tiny_models import make_tiny_qwen3

TIMEOUT_S = 420
JOIN_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/ray_cluster/"):
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where a loopback Daytona may be started that the processes on the nodes find."""

    port: int
    key: str

    @property
    def variables(self) -> dict[str, str]:
        return {"DAYTONA_API_URL": f"http://127.0.0.1:{self.port}/api", "DAYTONA_API_KEY": self.key}


@pytest.fixture(scope="session")
def account() -> Account:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Account(port=free.getsockname()[1], key="loopback-ray-nodes")


@pytest.fixture(scope="session")
def cluster(account: Account) -> Iterator[Cluster]:
    """Two nodes of two CPUs, beside the head."""
    pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # for the nodes, which inherit it
    with running_cluster(account.variables) as started:
        yield started


@pytest.fixture
def two_nodes(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with two live nodes, and this process connected to it."""
    from finqa_ray import cluster as connection

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
    from finqa_ray import cluster as connection

    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            return connection.join(address)
        except ServiceUnavailableError:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def controller_folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """A folder that only the controller sees; the nodes find nothing there."""
    if not CAN_HIDE:
        pytest.skip("nodes see all folders of this machine: `unshare --mount` is not permitted")
    folder = cluster.controller / f"t{zlib.crc32(request.node.nodeid.encode()):08x}"
    folder.mkdir()
    return folder


@pytest.fixture
def one_place_a_node(two_nodes: Cluster) -> Iterator[Cluster]:
    """One CPU of each node is taken, so that two ranks are on two nodes."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1.0}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(30)
    yield two_nodes
    remove_placement_group(group)


def wait_until_reserved() -> None:
    """Waits until Ray has moved what `one_place_a_node` took of a lost node to a new one."""
    from ray.util.placement_group import placement_group_table

    def is_reserved() -> bool:
        groups = [group for group in placement_group_table().values() if group["strategy"] == "STRICT_SPREAD"]
        return {group["state"] for group in groups} - {"REMOVED"} == {"CREATED"}

    wait_for(is_reserved, JOIN_S)


def live_nodes() -> list[str]:
    """Addresses of the nodes with CPUs in the cluster of this process."""
    import ray

    return [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and "CPU" in node["Resources"]]


def wait_for_nodes(count: int) -> None:
    """Waits until so many nodes with CPUs have joined the cluster of this process."""
    wait_for(lambda: len(live_nodes()) == count, JOIN_S)


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
