"""A device whose memory is full, as PyTorch reports it; the learner's arithmetic is real, on a tiny model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, relative
from fixtures.typed_losses import typed
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import LearnerEvents
from finqa_cli.errors import DeviceMemoryError
from finqa_cli.types import Batch, Loss, Sample
from finqa_plugins.learners.torch import micro_batches, state
from finqa_plugins.learners.torch import torch_learner as learner_module
from finqa_plugins.learners.torch.distributed.process_group import SingleProcess
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB."
DPO = typed("dpo", **{"beta": 0.1, "reference_free": 1.0})


class Watched:
    """A learner whose events and gradients are kept."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.learner = make_learner(model, options, lora_rank=0, max_grad_norm=1e9)
        self.events: list[Mapping[str, Any]] = []
        self.gradients: list[torch.Tensor] = []
        self.learner.report_to(LearnerEvents(event=self._note, failed=print))
        step = self.learner._optimizer.step

        def kept() -> None:
            parts = (part.grad for part in self.learner._trained.values())
            self.gradients.append(torch.cat([part.flatten() for part in parts if part is not None]))
            step()

        monkeypatch.setattr(self.learner._optimizer, "step", kept)

    def _note(self, name: str, facts: Mapping[str, Any]) -> None:
        assert name == "out_of_memory"
        self.events.append(facts)


class Device:
    """Memory for so many tokens in a forward pass, or with `backward` in a backward pass; notes the micro-batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tokens: int, *, backward: bool = False) -> None:
        self.sequences: list[int] = []
        self.left: list[bool] = []
        failed: list[weakref.ref[torch.Tensor]] = []
        forward, release_memory = PolicyForward.forward, learner_module.release_memory

        def fail(tensor: torch.Tensor) -> None:
            raise torch.OutOfMemoryError(FULL)

        def limited(policy: PolicyForward, inputs: Any, *rest: Any) -> Any:
            found = forward(policy, inputs, *rest)
            self.sequences.append(len(inputs.lengths))
            if inputs.token_ids.numel() > tokens:
                failed.append(weakref.ref(found[0]))
                if not backward:
                    fail(found[0])
                found[1].register_hook(fail)
            return found

        def noted(device: torch.device) -> None:
            self.left += [tensor() is not None for tensor in failed]
            failed.clear()
            release_memory(device)

        monkeypatch.setattr(PolicyForward, "forward", limited)
        monkeypatch.setattr(learner_module, "release_memory", noted)


def tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.token_ids) for sample in samples)


def pairs(count: int) -> list[Sample]:
    """Chosen and rejected in turn."""
    signs = [1.0, -1.0] * count
    return [
        replace(sample, advantages=tuple(sign * masked for masked in sample.loss_mask))
        for sample, sign in zip(random_samples(2 * count), signs, strict=True)
    ]


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("batch", "loss"),
    [
        # the smaller micro-batch comes first and has left its gradient when the other one fails
        (as_batch(random_samples(8), [range(2), range(2, 8)]), GRPO_LOSS),
        (as_batch(pairs(4), [range(2), range(2, 8)]), DPO),
    ],
    ids=["rollouts", "pairs"],
)
def test_a_step_without_memory_is_redone_in_smaller_parts_with_the_same_gradient(
    learner_model: Path, batch: Batch, loss: Loss, backward: bool, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parted = (Watched(learner_model, monkeypatch, packing=packing) for _ in range(2))
    expected = whole.learner.update(batch, loss)
    longest = max(len(sample.token_ids) for sample in batch.samples)
    device = Device(monkeypatch, 3 * longest, backward=backward)
    found = parted.learner.update(batch, loss)
    assert relative(parted.gradients[0], whole.gradients[0]) < 1e-5
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert device.left and not any(device.left), "what failed is gone when the device's cache is emptied"
    redone = len(device.sequences) - device.sequences[::-1].index(6) if device.sequences.count(6) else 2
    assert sum(device.sequences[redone:]) == 8 and max(device.sequences[redone:]) < 6
    budgets = [event["token_budget"] for event in parted.events]
    assert budgets == [event["tokens"] // 2 for event in parted.events] and parted.events[0]["work"] == "update"
    device.sequences.clear()
    parted.learner.update(batch, loss)
    assert max(device.sequences) < 6 and len(parted.events) == len(budgets), "the smaller budget is kept"


def test_scoring_without_memory_is_redone_in_smaller_parts(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, samples = Watched(learner_model, monkeypatch), random_samples(8)
    score: tuple[Callable[[Sequence[Sample]], Any], ...] = (
        watched.learner.logprobs,
        watched.learner.reference_logprobs,
        watched.learner.values,
    )
    expected = [method(samples) for method in score]
    states = PolicyForward.states

    def limited(policy: PolicyForward, inputs: Any) -> torch.Tensor:
        if inputs.token_ids.numel() > tokens(samples) / 2:
            raise torch.OutOfMemoryError(FULL)
        return states(policy, inputs)

    monkeypatch.setattr(PolicyForward, "states", limited)
    for method, rows in zip(score, expected, strict=True):
        watched.learner._scoring_budget = 0
        watched.events.clear()
        for row, wanted in zip(method(samples), rows, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        assert [event["work"] for event in watched.events] == ["scoring"]
        assert watched.events[0]["scoring_budget"] == watched.events[0]["tokens"] // 2


def test_scoring_without_memory_leaves_the_micro_batches_of_steps_as_they_are(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, samples = Watched(learner_model, monkeypatch), random_samples(8)
    with monkeypatch.context() as patch:
        scored = Device(patch, tokens(samples) // 2)
        watched.learner.logprobs(samples)
        assert len(scored.sequences) > 2
    device = Device(monkeypatch, 2**30)
    watched.learner.update(as_batch(samples), GRPO_LOSS)
    assert device.sequences == [8]
    assert all("token_budget" not in event for event in watched.events), "which would lower that of a resumed run"


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    ],
)
def test_memory_is_full_in_the_words_of_any_library(
    learner_model: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, samples, forward = Watched(learner_model, monkeypatch), random_samples(4), PolicyForward.forward

    def limited(policy: PolicyForward, inputs: Any, *rest: Any) -> Any:
        if len(inputs.lengths) > 2:
            raise RuntimeError(words)
        return forward(policy, inputs, *rest)

    monkeypatch.setattr(PolicyForward, "forward", limited)
    watched.learner.update(as_batch(samples), GRPO_LOSS)
    assert watched.events and watched.events[0]["reason"] == words.split("\n")[0]
    with (
        pytest.raises(DeviceMemoryError, match="while a model is loaded"),
        micro_batches.named("a model is loaded", "cuda:0"),
    ):
        raise RuntimeError(words)


def test_another_error_of_the_device_is_no_lack_of_memory(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    watched = Watched(learner_model, monkeypatch)
    monkeypatch.setattr(PolicyForward, "forward", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        watched.learner.update(as_batch(random_samples(2)), GRPO_LOSS)
    with pytest.raises(RuntimeError, match="illegal"), micro_batches.named("a model is loaded", "cuda:0"):
        fail()


def test_every_process_has_given_its_memory_back_before_a_call_returns(
    learner_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Noted(SingleProcess):
        def gather(self, item: Any) -> list[Any]:
            calls.append("together")
            return [item]

    learner = make_learner(learner_model)
    learner._processes = Noted()
    monkeypatch.setattr(learner_module, "release_memory", lambda device: calls.append("given back"))
    batch = as_batch(random_samples(2))
    works: tuple[Callable[[], Any], ...] = (
        lambda: learner.update(batch, GRPO_LOSS),
        lambda: learner.publish(tmp_path / "policy", 1),
        lambda: learner.save(tmp_path / "state"),
        lambda: learner.logprobs(batch.samples),
    )
    for work in works:
        calls.clear()
        work()
        assert calls[-2:] == ["given back", "together"]


@pytest.mark.parametrize("rank", [0, 4])
def test_publish_and_save_without_memory_are_redone_once(
    learner_model: Path, tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, events = make_learner(learner_model, lora_rank=rank), []
    learner.report_to(LearnerEvents(event=lambda name, facts: events.append(facts["work"]), failed=print))
    failures = [torch.OutOfMemoryError(FULL) for _ in range(4)]
    for name in ("publish_adapter" if rank else "publish_model", "save"):
        write = getattr(state, name)

        def failing(*arguments: Any, write: Callable[..., None] = write) -> None:
            if len(failures) in (4, 2, 1):
                raise failures.pop()
            failures.pop()
            write(*arguments)

        monkeypatch.setattr(state, name, failing)
    learner.publish(tmp_path / "policy", 1)
    assert any((tmp_path / "policy").glob("*.safetensors")) and events == ["publish"]
    with pytest.raises(DeviceMemoryError, match=r"cpu is out of memory \(save: CUDA out of memory\)") as caught:
        learner.save(tmp_path / "state")
    assert caught.value.exit_code == 71 and "--learner-processes" in caught.value.remedy
    assert events == ["publish", "save"]


def test_one_sequence_that_does_not_fit_is_named(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [replace(sample, episode=f"q{place}#1") for place, sample in enumerate(random_samples(4))]
    longest = max(samples, key=lambda sample: len(sample.token_ids))
    watched = Watched(learner_model, monkeypatch)
    before = [part.detach().clone() for part in watched.learner._trained.values()]
    Device(monkeypatch, len(longest.token_ids) - 2)
    with pytest.raises(DeviceMemoryError) as caught:
        watched.learner.update(as_batch(samples), GRPO_LOSS)
    named = f"memory of cpu is too small for episode {longest.episode!r} ({len(longest.token_ids)} tokens)"
    assert named in caught.value.message and caught.value.token_budget == 0
    assert "--max-gen-tokens" in caught.value.remedy and "--learner-processes" in caught.value.remedy
    assert all(torch.equal(left, right) for left, right in zip(before, watched.learner._trained.values(), strict=True))


def test_a_pair_that_does_not_fit_is_named_whole(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(learner_model, monkeypatch)
    Device(monkeypatch, 1)
    with pytest.raises(DeviceMemoryError, match=r"for sample \d \(\d+ tokens\) and sample \d \(\d+ tokens\), which"):
        watched.learner.update(as_batch(pairs(2)), DPO)


def test_one_of_several_processes_says_what_a_resumed_run_takes(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(SingleProcess):
        size = 2

        def gather(self, item: Any) -> list[Any]:
            return [item, item]

    watched = Watched(learner_model, monkeypatch)
    samples = random_samples(6)
    watched.learner._processes = Two()
    Device(monkeypatch, tokens(samples) // 2)
    with pytest.raises(DeviceMemoryError, match="A resumed run takes at most") as caught:
        watched.learner.update(as_batch(samples), GRPO_LOSS)
    assert caught.value.token_budget == tokens(samples) // 2 and not watched.events


@pytest.mark.parametrize("work", ["step", "start"])
def test_work_that_cannot_be_done_in_parts_is_named(
    learner_model: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError(FULL)

    if work == "start":
        monkeypatch.setattr(learner_module, "build_model", fail)
        with pytest.raises(DeviceMemoryError, match="learner's device is full while the model is loaded"):
            make_learner(learner_model)
        return
    learner = make_learner(learner_model)
    monkeypatch.setattr(learner._optimizer, "step", fail)
    with pytest.raises(DeviceMemoryError, match="is full while the optimizer takes its step"):
        learner.update(as_batch(random_samples(2)), GRPO_LOSS)


def test_scoring_stays_within_the_token_budget_of_the_settings(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, fed = make_learner(learner_model, token_budget=60), []
    states = PolicyForward.states

    def noted(policy: PolicyForward, inputs: Any) -> torch.Tensor:
        fed.append(inputs.token_ids.numel())
        return states(policy, inputs)

    monkeypatch.setattr(PolicyForward, "states", noted)
    learner.logprobs(random_samples(8))
    assert len(fed) > 2 and max(fed) <= 60


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=24).map(lambda sizes: sizes[: len(sizes) // 2 * 2]),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
)
def test_parts_have_every_row_once_in_order_and_stay_within_the_budget(
    sizes: list[int], budget: int, packed: bool, of_pairs: bool
) -> None:
    samples = [
        Sample(
            token_ids=(0,) * size,
            loss_mask=(True,) * size,
            logprobs=(0.0,) * size,
            advantages=(-1.0 if place % 2 else 1.0,) * size,
        )
        for place, size in enumerate(sizes)
    ]
    rows = range(len(samples))
    parts = micro_batches.cut([rows], samples, budget, packed=packed, pairs=of_pairs)
    assert [row for part in parts for row in part] == [*rows]
    for part in parts:
        alone = len(part) == (2 if of_pairs else 1)
        assert alone or micro_batches.count_tokens(part, samples, packed=packed) <= budget
        assert not of_pairs or (part[0] % 2 == 0 and len(part) % 2 == 0)
    assert micro_batches.cut([rows], samples, 0, packed=packed, pairs=of_pairs) == [[*rows]]
