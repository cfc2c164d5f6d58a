"""Frozen weights leave the device while an engine uses it. On the CPU, the device is memory that is counted."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples

from finqa_plugins.learners.torch.frozen_weights import FrozenWeights
from finqa_plugins.learners.torch.torch_learner import TorchLearner


class Device:
    """Memory of a device: arrays that live as long as a tensor uses them."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []

    def copy(self, weight: torch.Tensor) -> torch.Tensor:
        array = weight.numpy().copy()
        self._arrays.append(weakref.ref(array))
        return torch.from_numpy(array)

    @property
    def used(self) -> int:
        """Bytes in use."""
        gc.collect()
        return sum(array.nbytes for reference in self._arrays if (array := reference()) is not None)


def on_a_device(learner: TorchLearner) -> Device:
    """Puts the frozen weights of a learner to a device of its own."""
    device = Device()
    parameters = list(learner._model.parameters())
    for one in parameters:
        if not one.requires_grad:
            one.data = device.copy(one.data)
    learner._resting = FrozenWeights(parameters, to_host=torch.clone, to_device=device.copy)
    return device


def test_training_with_naps_is_training_without(learner_model: Path, tmp_path: Path) -> None:
    awake, napping = make_learner(learner_model), make_learner(learner_model)
    device = on_a_device(napping)
    frozen = sum(one.nbytes for one in napping._model.parameters() if not one.requires_grad)
    assert frozen and device.used == frozen
    for seed in range(3):
        napping.sleep()
        napping.sleep()
        assert device.used == 0, "nothing keeps a weight, also no function that keeps inputs of its backward pass"
        napping.publish(tmp_path / f"v{seed}", seed)
        napping.save(tmp_path / f"state{seed}")
        assert device.used == 0
        napping.wake()
        napping.wake()
        assert device.used == frozen
        samples = random_samples(4, seed=seed)
        reports = [learner.update(as_batch(samples), GRPO_LOSS) for learner in (awake, napping)]
        assert reports[0].loss == reports[1].loss and reports[0].grad_norm == reports[1].grad_norm
        rows = [np.concatenate(learner.logprobs(samples)) for learner in (awake, napping)]
        assert np.array_equal(*rows)
    assert all(torch.equal(awake._trained[name], part) for name, part in napping._trained.items())


def test_full_training_and_the_cpu_move_nothing(learner_model: Path) -> None:
    adapter, full = make_learner(learner_model), make_learner(learner_model, lora_rank=0)
    places = [one.data_ptr() for one in adapter._model.parameters()]
    adapter.sleep()
    assert [one.data_ptr() for one in adapter._model.parameters()] == places
    resting = FrozenWeights(full._model.parameters(), to_host=torch.clone, to_device=torch.clone)
    resting.sleep()
    resting.wake()
    assert full.update(as_batch(random_samples(2)), GRPO_LOSS).grad_norm > 0
