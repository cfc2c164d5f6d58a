from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, random_samples, relative
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.forward import state_logprobs

OPENING = tuple(range(60))


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("opening", [(), OPENING], ids=["alone", "shared"])
@pytest.mark.parametrize(("precise", "tolerance"), [(True, 1e-6), (False, 5e-6)], ids=["float64", "float32"])
def test_gradient_does_not_depend_on_microbatching(
    learner_model: Path, rank: int, opening: tuple[int, ...], precise: bool, tolerance: float
) -> None:
    learner = make_learner(learner_model, lora_rank=rank)
    samples = random_samples(12, opening=opening)
    learner.update(as_batch(samples), GRPO_LOSS)  # so that neither adapter matrix is 0
    if precise:  # what is left is the rounding of Qwen3's norms, which compute in float32 in any case
        learner._model.double()
    whole = gradient(learner, as_batch(samples))
    cuts = [pack(samples, token_budget=budget, max_rows=rows) for budget, rows in ((1, 1), (200, 12), (10_000, 5))]
    for batch in [*cuts, as_batch(samples, [range(0, 12, 2), range(1, 12, 2)])]:
        assert relative(gradient(learner, batch), whole) <= tolerance


@pytest.mark.parametrize("rank", [0, 4])
def test_gradient_checkpointing_does_not_change_the_gradient(learner_model: Path, rank: int) -> None:
    batch = as_batch(random_samples(4, opening=OPENING))
    plain, recomputed = (
        make_learner(learner_model, lora_rank=rank, gradient_checkpointing=on, seed=3) for on in (False, True)
    )
    assert relative(gradient(recomputed, batch), gradient(plain, batch)) <= 1e-6


def test_head_in_chunks_does_not_change_the_gradient(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(learner_model, lora_rank=0)
    batch = as_batch(random_samples(4))
    whole = gradient(learner, batch)
    monkeypatch.setattr("finqa_plugins.learners.torch.forward._LOGITS_PER_CHUNK", 300 * 7)
    assert relative(gradient(learner, batch), whole) <= 1e-6


class Peak(TorchDispatchMode):
    """How many tensors of at least this many numbers exist at once.

    Attributes:
        found: The most so far.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.found = 0
        self._numbers = numbers
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and output.numel() >= self._numbers:
            seen = StorageWeakRef(output.untyped_storage())
            self._seen = {place: other for place, other in self._seen.items() if not other.expired()}
            self._seen[seen.cdata] = seen
            self.found = max(self.found, len(self._seen))
        return output


def test_of_the_size_of_a_chunk_of_logits_two_tensors_exist_at_once_and_three_in_the_backward_pass() -> None:
    head = torch.nn.Linear(8, 1000, bias=False)
    causal = SimpleNamespace(get_output_embeddings=lambda: head)
    states, targets = torch.randn(16, 8, requires_grad=True), torch.arange(16)
    with Peak(16 * 1000) as scored, torch.no_grad():
        state_logprobs(causal, states, targets, 0.7)
    with Peak(16 * 1000) as learned:
        state_logprobs(causal, states, targets, 0.7)[0].sum().backward()
    assert (scored.found, learned.found) == (2, 3)


def test_loss_matches_full_logits_computed_plainly(learner_model: Path) -> None:
    """-sum min(r A, clip(r) A) / N from the model's own [1, L, V] logits, one row at a time."""
    learner = make_learner(learner_model, temperature=0.7)
    samples = random_samples(5, opening=OPENING)
    samples = list(attach_rows(samples, proximal_logprobs=[sample.logprobs for sample in samples]))
    expected, tokens = 0.0, 0
    for sample in samples:
        with torch.no_grad():
            logits = learner._causal(torch.tensor([sample.token_ids])).logits[0] / 0.7
        for place in (place for place, masked in enumerate(sample.loss_mask) if masked):
            new = torch.log_softmax(logits[place - 1], -1)[sample.token_ids[place]]
            ratio, advantage = torch.exp(new - sample.logprobs[place]), sample.advantages[place]
            expected -= float(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
            tokens += 1
    report = learner.update(as_batch(samples), GRPO_LOSS)
    assert report.loss == pytest.approx(expected / tokens, rel=1e-5)
    assert report.loss_tokens == tokens


def test_logprobs_are_at_the_rollout_temperature(learner_model: Path) -> None:
    samples = random_samples(3, opening=OPENING)
    warm = make_learner(learner_model, temperature=2.0)
    for sample, row in zip(samples, warm.logprobs(samples), strict=True):
        with torch.no_grad():
            expected = torch.log_softmax(warm._causal(torch.tensor([sample.token_ids])).logits[0] / 2.0, -1)
        for place, masked in enumerate(sample.loss_mask):
            want = float(expected[place - 1, sample.token_ids[place]]) if masked else 0.0
            assert row[place] == pytest.approx(want, abs=1e-5)


def test_logprobs_of_a_head_in_bfloat16_are_float32() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, states = (torch.randn(rows, 16, generator=draw).to(torch.bfloat16) for rows in (50, 7))
    head = torch.nn.Linear(16, 50, bias=False, dtype=torch.bfloat16)
    head.weight.data.copy_(weight)
    targets = torch.randint(50, (7,), generator=draw)
    causal = SimpleNamespace(get_output_embeddings=lambda: head)
    logprobs, entropy = state_logprobs(causal, states, targets, 0.7)
    exact = torch.log_softmax(head(states).double() / 0.7, -1)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert torch.allclose(logprobs.double(), exact.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-5)
    assert torch.allclose(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=0, atol=1e-5)


def test_logprobs_of_samples_without_loss_are_zeros(learner_model: Path) -> None:
    sample = Sample(token_ids=(1, 2), loss_mask=(False, False), logprobs=(0.0, 0.0), advantages=(0.0, 0.0))
    assert make_learner(learner_model).logprobs([sample])[0].tolist() == [0.0, 0.0]
    assert make_learner(learner_model).logprobs([]) == ()


def test_only_positions_that_predict_loss_tokens_feed_the_loss(learner_model: Path) -> None:
    """The head sees one hidden state per loss token, and what is masked out has a gradient of exactly 0 by itself."""
    learner = make_learner(learner_model, lora_rank=0)
    sample = random_samples(1, opening=OPENING)[0]
    seen: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    handle = learner._causal.base_model.register_forward_hook(
        lambda module, inputs, output: keep(module, inputs, output[0])
    )
    gradient(learner, as_batch([sample]), CrossEntropyLoss())
    handle.remove()
    hidden = seen[0]
    assert hidden.grad is not None
    moved = hidden.grad[0].abs().sum(-1) > 0
    predicting = [sample.loss_mask[place + 1] for place in range(hidden.shape[1])]
    assert moved.tolist() == predicting


def test_what_follows_the_last_loss_token_changes_nothing(learner_model: Path) -> None:
    learner = make_learner(learner_model, lora_rank=0)
    sample = random_samples(1)[0]
    longer = replace(
        sample,
        token_ids=(*sample.token_ids, 7, 8),
        loss_mask=(*sample.loss_mask, False, False),
        logprobs=(*sample.logprobs, 0.0, 0.0),
        advantages=(*sample.advantages, 0.0, 0.0),
    )
    assert torch.equal(gradient(learner, as_batch([longer])), gradient(learner, as_batch([sample])))


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.3, 1.0, False), (1.3, -1.0, True), (0.7, 1.0, True), (0.7, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_the_clip_stops_only_what_goes_further_its_own_way(
    learner_model: Path, ratio: float, advantage: float, moves: bool
) -> None:
    learner = make_learner(learner_model, lora_rank=0)
    base = Sample(token_ids=(1, 2), loss_mask=(False, True), logprobs=(0.0, 0.0), advantages=(0.0, advantage))
    old = learner.logprobs([base])[0][1] - float(torch.log(torch.tensor(ratio)))
    sample = replace(base, proximal_logprobs=(0.0, old))
    report_gradient = gradient(learner, as_batch([sample]))
    assert bool(report_gradient.abs().sum() > 0) is moves
    unclipped = PolicyGradientLoss()
    assert gradient(learner, as_batch([sample]), unclipped).abs().sum() > 0


def test_cross_entropy_ignores_sampler_temperature_and_advantages(learner_model: Path) -> None:
    learner = make_learner(learner_model, temperature=0.5)
    sample = random_samples(1)[0]
    with torch.no_grad():
        logprobs = torch.log_softmax(learner._causal(torch.tensor([sample.token_ids])).logits[0], -1)
    chosen = [place for place, masked in enumerate(sample.loss_mask) if masked]
    expected = -sum(float(logprobs[place - 1, sample.token_ids[place]]) for place in chosen) / len(chosen)
    report = learner.update(as_batch([sample]), CrossEntropyLoss())
    assert report.loss == pytest.approx(expected, rel=1e-5)
    assert set(report.metrics) == {"entropy"}
