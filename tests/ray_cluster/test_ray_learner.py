"""Learner processes on two nodes beside one process, and what happens when a node is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.shared_training import KINDS, _batch
from ray_cluster.conftest import wait_until_reserved
from ray_cluster.nodes import Cluster
from safetensors.torch import load_file

from finqa_cli.contracts import LearnerContext, LearnerEvents
from finqa_cli.errors import FinqaError, LearnerProcessError
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.torch_learner import TorchLearner

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

GONE_S = 30.0


class Maker:
    """Makes learners of two ranks, and keeps the last one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.made: list[Any] = []

    def __call__(self, config: TorchLearnerConfig, context: LearnerContext) -> Any:
        from finqa_ray.ray_learner import RayLearner

        while self.made:
            self.made.pop().close()
        learner = RayLearner("torch", config, replace(context, processes=2, cluster=self.address))
        self.made.append(learner)
        return learner


@pytest.fixture
def make(one_place_a_node: Cluster) -> Iterator[Maker]:
    maker = Maker(one_place_a_node.address)
    yield maker
    for learner in maker.made:
        learner.close()


def largest(left: Path, right: Path) -> float:
    """Largest difference of any element of two files."""
    ours, theirs = load_file(left), load_file(right)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in theirs)


def take_steps(learner: Any, first: int, last: int) -> list[dict[str, float]]:
    """Steps of the kind `adapter`, whose batches follow from their numbers; what each reported."""
    loss, _ = KINDS["adapter"]
    reports = [learner.update(_batch(learner, "adapter", step), loss) for step in range(first, last)]
    return [{"loss": report.loss, "grad_norm": report.grad_norm, **report.metrics} for report in reports]


def test_four_steps_on_two_nodes_are_those_of_one_process_and_a_lost_node_is_no_lost_step(
    make: Maker, one_place_a_node: Cluster, tiny_model: Path, tmp_path: Path
) -> None:
    config = TorchLearnerConfig(device="cpu")
    context = LearnerContext(model=str(tiny_model), learning_rate=1e-3, lora_rank=4, max_grad_norm=0.5)
    one = TorchLearner(config, context)
    alone = take_steps(one, 0, 4)
    one.publish(tmp_path / "one", 1)

    two, failures, failed = make(config, context), list[FinqaError](), threading.Event()
    two.report_to(LearnerEvents(event=lambda *_: None, failed=lambda error: (failures.append(error), failed.set())))
    shared = take_steps(two, 0, 2)
    assert len(set(two.nodes)) == 2
    two.save(tmp_path / "half")
    shared += take_steps(two, 2, 4)
    policy = two.publish(tmp_path / "two", 1)
    two.save(tmp_path / "unbroken")
    assert policy.adapter == tmp_path / "two"
    assert largest(*(tmp_path / name / "adapter_model.safetensors" for name in ("two", "one"))) <= 1e-5
    for left, right in zip(shared, alone, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    samples = _batch(one, "adapter", 4).samples
    for left, right in zip(two.logprobs(samples), one.logprobs(samples), strict=True):
        assert left == pytest.approx(right, abs=1e-5)

    (node,) = (node for node in one_place_a_node.nodes if node.running() and node.address == two.nodes[1])
    node.kill()
    assert failed.wait(GONE_S)
    assert f"Learner process 2 of 2 on node {node.address} is gone" in failures[0].message
    with pytest.raises(LearnerProcessError, match="Learner process"):
        two.logprobs(samples)

    one_place_a_node.add()
    wait_until_reserved()
    resumed = make(config, context)
    resumed.start()
    assert node.address not in resumed.nodes and len(set(resumed.nodes)) == 2
    resumed.load(tmp_path / "half")
    take_steps(resumed, 2, 4)
    resumed.save(tmp_path / "resumed")
    for name in ("trained.safetensors", "optimizer.safetensors"):
        assert largest(tmp_path / "resumed" / name, tmp_path / "unbroken" / name) == 0.0
