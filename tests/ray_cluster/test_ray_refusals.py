"""What is refused on a cluster, and the fix that is named."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.nodes import Cluster

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, ServiceUnavailableError
from finqa_cli.extend import registry

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")


def engine(model: Path, address: str, *, lockstep: bool = False, replicas: int = 1, **options: Any) -> Any:
    context = EngineContext(model=str(model), cluster=address, replicas=replicas, **options)
    return registry().create("engine", "ray:transformers", {"lockstep": lockstep}, context)


def start_and_close(made: Any) -> None:
    async def scene() -> None:
        try:
            await made.start()
        finally:
            await made.close()

    asyncio.run(scene())


def test_an_address_without_a_cluster_is_named(tiny_model: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"cluster\.address=127\.0\.0\.9:9") as caught:
        start_and_close(engine(tiny_model, "127.0.0.9:9"))
    assert caught.value.remedy.startswith("--set cluster.address=local, ")


def test_a_cluster_that_is_too_small_is_described(
    two_nodes: Cluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finqa_ray.cluster.PLACE_S", 2.0)
    with pytest.raises(ConfigError, match=r"no room for 9 .* 9 CPUs and 0 GPUs: it has 4 CPUs") as caught:
        start_and_close(engine(tiny_model, two_nodes.address, replicas=9))
    assert caught.value.remedy.startswith("--engine-replicas and ")


def test_lockstep_is_refused_and_a_model_that_is_not_on_the_node_is_named(
    two_nodes: Cluster, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="lockstep") as caught:
        start_and_close(engine(tiny_model, two_nodes.address, lockstep=True))
    assert caught.value.remedy == "--set engine.options.lockstep=false"
    with pytest.raises(ConfigError, match="nothere"):
        start_and_close(engine(tmp_path / "nothere", two_nodes.address))


def test_a_learner_for_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from finqa_ray.rank_actor import Place, RankActor

    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(ConfigError, match="'mine' trains in one process, not in 2") as caught:
        RankActor("mine", 1, 2).serve(Place(version="", node="127.0.0.1", port=1, pid=1), "")
    assert caught.value.remedy == "--learner-processes 1"


def test_another_finqa_on_a_node_is_refused() -> None:
    from finqa_ray.cluster import check_version

    with pytest.raises(ConfigError, match=r"Node 10\.0\.0\.7 has finqa 0\.0\.9") as caught:
        check_version("0.0.9", "10.0.0.7")
    assert caught.value.remedy.startswith("pip install 'finqa[ray]==")
