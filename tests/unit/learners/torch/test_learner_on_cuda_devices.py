"""What must be said to CUDA beside the arithmetic: the device of a thread, and memory that is not needed any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import as_batch, make_learner, random_samples

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_plugins.learners.torch import torch_learner, trained_model
from finqa_plugins.learners.torch.distributed.process_group import SingleProcess, on_device, release_memory
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward


class Place:
    """Stands in for `on_device`, and keeps what ran inside and outside of it."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []
        self.within: list[tuple[str, bool]] = []
        self._inside = False

    @contextlib.contextmanager
    def __call__(self, device: torch.device) -> Iterator[None]:
        self.devices.append(device)
        self._inside = True
        yield
        self._inside = False

    def note(self, what: str) -> None:
        self.within.append((what, self._inside))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place()
    for module in (trained_model, torch_learner):
        monkeypatch.setattr(module, "on_device", place)
    return place


def test_forward_and_backward_passes_are_on_the_device_of_the_learner(
    learner_model: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = PolicyForward.states

    def noted(self: PolicyForward, *inputs: Any) -> torch.Tensor:
        place.note("forward")
        found = states(self, *inputs)
        if found.requires_grad:
            found.register_hook(lambda gradient: place.note("backward"))
        return found

    monkeypatch.setattr(PolicyForward, "states", noted)
    made = make_learner(learner_model, lora_rank=0)
    batch = as_batch(random_samples(2))
    made.update(batch, CrossEntropyLoss())
    for score in (made.logprobs, made.values, made.reference_logprobs):
        score(batch.samples)
    assert place.within == [("forward", True), ("backward", True), *[("forward", True)] * 3]
    assert set(place.devices) == {torch.device("cpu")}


def test_weights_are_cut_on_the_device_of_the_learner(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Several(SingleProcess):
        def mesh(self, device: torch.device) -> Any:
            return "mesh"

    monkeypatch.setattr(trained_model, "shard", lambda forward, mesh: place.note(mesh))
    trained_model._forward(torch.nn.Linear(1, 1), torch.device("cuda:1"), Several())
    assert (place.within, place.devices) == ([("mesh", True)], [torch.device("cuda:1")])


def test_it_is_the_device_of_the_thread_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(entered.append(device)))
    for name in ("cuda:1", "cpu"):
        with on_device(torch.device(name)):
            pass
    assert entered == [torch.device("cuda:1")]


def test_what_a_call_does_not_need_any_more_is_given_back(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    made = make_learner(learner_model)
    batch = as_batch(random_samples(2))

    def noted(device: torch.device) -> None:
        assert device == torch.device("cpu")
        given.append(all(part.grad is None for part in made._trained.values()))

    monkeypatch.setattr(torch_learner, "release_memory", noted)
    made.update(batch, CrossEntropyLoss())
    made.logprobs(batch.samples)
    assert given == [True, True]


def test_memory_is_given_back_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []

    @contextlib.contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        steps.append(device)
        yield
        steps.append("left")

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: steps.append("emptied"))
    release_memory(torch.device("cpu"))
    assert not steps
    release_memory(torch.device("cuda:1"))
    assert steps == [torch.device("cuda:1"), "emptied", "left"]
