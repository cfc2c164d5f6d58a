"""Losses on pairs against hand-computed values, and through the learner against any cut into micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs finqa[train]")

from fixtures.tiny_learners import as_batch, gradient, make_learner, random_samples, relative  # noqa: E402
from fixtures.token_losses import compute_loss  # noqa: E402
from fixtures.typed_losses import typed  # noqa: E402
from pydantic import ValidationError  # noqa: E402

from finqa_cli.algorithms.losses import CrossEntropyLoss  # noqa: E402
from finqa_cli.algorithms.pair_batches import PairSamples, pair_batch, pair_outcomes, with_pair_references  # noqa: E402
from finqa_cli.types import Sample  # noqa: E402
from finqa_plugins.learners.torch.forward import Inputs  # noqa: E402

BETA = 0.1


def inputs(
    signs: list[int], lengths: list[int], reference: list[float] | None, weights: list[float] | None = None
) -> Inputs:
    """Rows of the given lengths; sign +1 is a chosen row, -1 a rejected one."""
    tokens = sum(lengths)
    advantages = [float(sign) for sign, length in zip(signs, lengths, strict=True) for _ in range(length)]
    nothing = torch.zeros(tokens)
    return Inputs(
        token_ids=torch.zeros((len(lengths), 1), dtype=torch.long),
        positions=torch.zeros(tokens, dtype=torch.long),
        targets=torch.zeros(tokens, dtype=torch.long),
        old_logprobs=nothing,
        advantages=torch.tensor(advantages),
        proximal_logprobs=None,
        lengths=tuple(lengths),
        reference_logprobs=None if reference is None else torch.tensor(reference),
        weights=1.0 if weights is None else torch.tensor(weights),
    )


def loss_of(name: str, logprobs: list[float], about: Inputs, **parameters: float) -> tuple[float, list[float]]:
    """Value, and its gradient with respect to each log-probability."""
    values = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    built = typed(name, **{"beta": BETA, **parameters})
    found = compute_loss(built, values, torch.zeros(len(logprobs)), about)
    found.loss.backward()
    return float(found.loss.detach()), values.grad.tolist()


# chosen: -1 -2, reference -1.5 -2.5, gain 1; rejected: -3 -1 -1, reference -2 -1 -1, gain -1; so h = 2
LOGPROBS = [-1.0, -2.0, -3.0, -1.0, -1.0]
ONE_PAIR = inputs([1, -1], [2, 3], [-1.5, -2.5, -2.0, -1.0, -1.0])
H = 2.0


@pytest.mark.parametrize(
    ("name", "parameters", "value", "slope"),
    [
        ("dpo", {}, math.log(1 + math.exp(-0.2)), -0.1 / (1 + math.exp(0.2))),
        (
            "dpo",
            {"label_smoothing": 0.25},
            0.75 * math.log(1 + math.exp(-0.2)) + 0.25 * math.log(1 + math.exp(0.2)),
            -0.75 * 0.1 / (1 + math.exp(0.2)) + 0.25 * 0.1 / (1 + math.exp(-0.2)),
        ),
        ("dpo_hinge", {}, 0.8, -0.1),
        ("dpo_hinge", {"beta": 0.5}, 0.0, 0.0),
        ("dpo_ipo", {}, 9.0, -6.0),  # (2 - 5)^2, 2 (2 - 5)
    ],
)
def test_each_form_is_what_a_hand_computes(name: str, parameters: dict[str, float], value: float, slope: float) -> None:
    found, slopes = loss_of(name, LOGPROBS, ONE_PAIR, **parameters)
    assert found == pytest.approx(value, rel=1e-6)
    assert slopes == pytest.approx([slope, slope, -slope, -slope, -slope], rel=1e-6)


def test_without_a_reference_only_the_policy_counts() -> None:
    # log pi: chosen -3, rejected -5, so h = 2 as well, by other numbers
    free = inputs([1, -1], [2, 3], None)
    assert loss_of("dpo", LOGPROBS, free, reference_free=1.0)[0] == pytest.approx(
        math.log(1 + math.exp(-0.2)), rel=1e-6
    )
    ignored = inputs([1, -1], [2, 3], [-9.0] * 5)
    assert loss_of("dpo", LOGPROBS, ignored, reference_free=1.0) == loss_of("dpo", LOGPROBS, free, reference_free=1.0)


def test_an_attempt_in_several_sequences_counts_as_one() -> None:
    reference = [-1.5, -2.5, -2.0, -1.0, -1.0]
    forked = inputs([1, 1, -1, -1], [1, 1, 1, 2], reference)
    assert loss_of("dpo", LOGPROBS, forked) == loss_of("dpo", LOGPROBS, ONE_PAIR)


def test_pairs_add_up_each_with_its_weight_and_its_figures() -> None:
    weights = [3.0] * 5 + [3.0] * 2
    both = inputs([1, -1, 1, -1], [2, 3, 1, 1], [-1.5, -2.5, -2.0, -1.0, -1.0, -1.0, -1.0], weights)
    values = [*LOGPROBS, -2.0, -1.0]  # second pair: gains -1 and 0, h = -1
    built = typed("dpo", **{"beta": BETA})
    found = compute_loss(built, torch.tensor(values), torch.zeros(7), both)
    expected = 3 * (math.log(1 + math.exp(-0.2)) + math.log(1 + math.exp(0.1)))
    assert float(found.loss) == pytest.approx(expected, rel=1e-6)
    sums = {name: float(value) for name, value in found.sums.items()}
    assert sums == pytest.approx(
        {
            "preference_accuracy": 3 * 1.0,
            "reward_margin": 3 * BETA * (2 - 1),
            "reward_chosen": 3 * BETA * (1 - 1),
            "reward_rejected": 3 * BETA * (-1 + 0),
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("signs", [[-1, 1], [1, 1], [-1, -1], [1, -1, 1]])
def test_rows_that_are_not_whole_pairs_are_refused(signs: list[int]) -> None:
    broken = inputs(signs, [1] * len(signs), None)
    with pytest.raises(ValueError, match="whole pairs"):
        loss_of("dpo", [-1.0] * len(signs), broken, reference_free=1.0)


@pytest.mark.parametrize(
    ("name", "parameters", "told"),
    [
        ("dpo", {"beta": 0.0}, r"beta\n.*greater than 0"),
        ("dpo", {"label_smoothing": 0.5}, r"label_smoothing\n.*less than 0.5"),
        ("dpo_ipo", {"label_smoothing": 0.1}, "label_smoothing belongs to form sigmoid, not to ipo"),
        ("dpo", {"clip_low": 0.1}, r"clip_low\n.*not permitted"),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, parameters: dict[str, float], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        typed(name, **{"beta": BETA, **parameters})


def signed(sample: Sample, sign: float) -> Sample:
    return replace(sample, advantages=tuple(sign if masked else 0.0 for masked in sample.loss_mask))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from finqa_testing.tiny_models import make_tiny_qwen3

    return make_tiny_qwen3(tmp_path_factory.mktemp("model"))


def test_the_learners_gradient_is_that_of_the_mean_over_pairs_however_they_are_cut(tiny: Path) -> None:
    learner = make_learner(tiny)
    samples = random_samples(8, seed=4)
    pairs = [
        PairSamples(
            id=str(n), cluster="", chosen=(signed(samples[2 * n], 1),), rejected=(signed(samples[2 * n + 1], -1),)
        )
        for n in range(4)
    ]
    loss = typed("dpo", **{"beta": 0.5})
    with pytest.raises(ValueError, match="no reference log-probabilities"):
        learner.update(pair_batch(pairs, token_budget=10_000), loss)
    pairs = list(with_pair_references(pairs, learner.reference_logprobs([s for p in pairs for s in p.samples])))
    whole, cut = (pair_batch(pairs, token_budget=budget) for budget in (10_000, 1))
    assert (len(whole.microbatches), len(cut.microbatches)) == (1, 4)
    assert relative(gradient(learner, cut, loss), gradient(learner, whole, loss)) < 1e-5
    # at the reference itself h = 0, so the gradient is beta / 2 times that of the mean log-likelihood of the rejected
    # less that of the chosen, which is cross entropy with these weights
    tokens = whole.loss_tokens
    plain = [
        replace(s, weight=(0.5 / 2) * a * tokens / 4) for p in pairs for s, a in zip(p.samples, (1, -1), strict=True)
    ]
    expected = gradient(learner, as_batch(plain), CrossEntropyLoss())
    assert relative(gradient(learner, whole, loss), expected) < 1e-4


@pytest.mark.parametrize("name", ["dpo", "dpo_hinge", "dpo_ipo"])
def test_steps_make_the_chosen_likelier_than_the_rejected(tiny: Path, name: str) -> None:
    learner = make_learner(tiny, learning_rate=5e-4)
    samples = random_samples(4, seed=7)
    pairs = [
        PairSamples(
            id=str(n), cluster="", chosen=(signed(samples[2 * n], 1),), rejected=(signed(samples[2 * n + 1], -1),)
        )
        for n in range(2)
    ]
    flat = [sample for pair in pairs for sample in pair.samples]
    pairs = list(with_pair_references(pairs, learner.reference_logprobs(flat)))
    assert all(abs(each.difference) < 1e-4 for each in pair_outcomes(pairs, learner.logprobs(flat)))
    reports = [learner.update(pair_batch(pairs, token_budget=512), typed(name, **{"beta": BETA})) for _ in range(6)]
    assert reports[-1].loss < reports[0].loss
    assert reports[0].metrics["preference_accuracy"] == 0.5 and reports[-1].metrics["preference_accuracy"] == 1.0
    after = pair_outcomes(pairs, learner.logprobs(flat))
    assert all(outcome.difference > 0 for outcome in after)
