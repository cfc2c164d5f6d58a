"""Whole models in parts, from a learner to engines, between nodes that do not see the controller's folder."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.shared_training import KINDS, _batch
from ray_cluster.nodes import OBJECT_STORE_BYTES, Cluster
from ray_cluster.test_ray_engine import ask, running_replicas, written
from ray_cluster.test_ray_learner import largest

from finqa_cli.contracts import EngineContext, LearnerContext
from finqa_cli.errors import StorageError
from finqa_cli.extend import registry
from finqa_cli.types import PolicyVersion
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_ray import folder_files

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

PART = 50_000
LARGE = OBJECT_STORE_BYTES + 100 * 2**20


async def test_whole_models_pass_from_a_learner_on_two_nodes_to_engines_on_two_nodes(
    one_place_a_node: Cluster, tiny_model: Path, controller_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes see nothing of the controller's folder, neither the base model nor a version."""
    from finqa_ray.ray_learner import RayLearner

    monkeypatch.setattr(folder_files, "PART_BYTES", PART)
    base = shutil.copytree(tiny_model, controller_folder / "base")
    loss, _ = KINDS["whole"]
    facts = {"learning_rate": 1e-3, "lora_rank": 0, "max_grad_norm": 0.5}
    config = TorchLearnerConfig(device="cpu")
    one = TorchLearner(config, LearnerContext(model=str(base), **facts))  # type: ignore[arg-type]
    there = LearnerContext(model=str(base), processes=2, cluster=one_place_a_node.address, **facts)  # type: ignore[arg-type]
    two = RayLearner("torch", config, there)
    try:
        for learner in (one, two):
            learner.update(_batch(learner, "whole", 0), loss)
        assert len(set(two.nodes)) == 2 and len(written(one_place_a_node, "model/model.safetensors")) == 2
        two.save(controller_folder / "state")
        policy = two.publish(controller_folder / "v1", 1)
        one.publish(controller_folder / "one", 1)
        assert policy == PolicyVersion(number=1, model=str(controller_folder / "v1"))
        assert largest(*(controller_folder / name / "model.safetensors" for name in ("v1", "one"))) <= 1e-5
        two.load(controller_folder / "state")
        for file in (controller_folder / "v1").glob("*.json"):
            assert "finqa-node-" not in file.read_text(), "paths of a node are of no use elsewhere"
    finally:
        two.close()
    assert not written(one_place_a_node, "*"), "the folders of both ranks are removed"

    context = EngineContext(model=policy.model, lora_rank=0, needs_tokens=True)
    local = registry().create("engine", "transformers", {"lockstep": False}, context)
    await local.start()
    expected = await local.generate(ask(5))
    await local.close()
    shutil.copytree(controller_folder / "v1", controller_folder / "v2")
    (controller_folder / "v2" / "ballast").touch()
    os.truncate(controller_folder / "v2" / "ballast", LARGE)
    async with running_replicas(one_place_a_node, base, 2, lora_rank=0) as together:
        engines: list[Any] = [replica.engine for replica in together._replicas]
        assert len({engine.node for engine in engines}) == 2
        assert len(written(one_place_a_node, "start/model.safetensors")) == 2
        before = await together.generate(ask(5))
        assert before.policy_version == 0 and before.logprobs != pytest.approx(expected.logprobs, abs=1e-5)
        for version in (policy, replace(policy, number=2, model=str(controller_folder / "v2"))):
            await together.load(version)
            monkeypatch.undo()
            for engine in engines:
                found = await engine.generate(ask(5))
                assert (found.policy_version, found.token_ids) == (version.number, expected.token_ids)
                assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        trained = (controller_folder / "v2" / "model.safetensors").read_bytes()
        assert len(trained) > 2 * PART
        paths = written(one_place_a_node, "v*/model.safetensors")
        assert {path.parent.name for path in paths} == {"v00002"}, "older models are removed"
        assert len(paths) == 2 and all(path.read_bytes() == trained for path in paths)
        assert [path.stat().st_size for path in written(one_place_a_node, "v00002/ballast")] == [LARGE, LARGE]
        machines = [one_place_a_node.head, *one_place_a_node.nodes]
        spilled = [path for node in machines for path in node.tmp.glob("session_*/ray_spilled_objects*/*")]
        assert not spilled, "the object stores never had more than they can hold"

        put = engines[0]._cluster.sent._put
        monkeypatch.setattr(engines[0]._cluster.sent, "_put", lambda content: put(content[::-1].copy()))
        shutil.copytree(controller_folder / "v1", controller_folder / "v3")
        with pytest.raises(StorageError, match="arrived with other bytes than it was sent with"):
            await engines[0].load(PolicyVersion(number=3, model=str(controller_folder / "v3")))
        assert (await engines[0].generate(ask(5))).policy_version == 2
    assert not written(one_place_a_node, "*")
