"""What the weights of samples make of the learner's one division."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from fixtures.typed_losses import typed
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.algorithms.losses import counts_neutral, weigh_samples
from finqa_cli.types import Loss, Sample


def sample(tokens: int, advantage: float = 1.0, episode: str = "") -> Sample:
    return Sample(
        token_ids=(0,) * (tokens + 1),
        loss_mask=(False, *(True,) * tokens),
        logprobs=(0.0,) * (tokens + 1),
        advantages=(0.0, *(advantage,) * tokens),
        episode=episode,
    )


def loss(normalization: Any = "trained", length: float = 0.0, **parameters: float) -> Loss:
    return typed("policy_gradient", **parameters, normalization=normalization, normalization_length=length)


def coefficients(samples: Sequence[Sample], spec: Loss) -> list[float]:
    """What the learner multiplies each returned sample's token losses with."""
    kept = weigh_samples(samples, spec)
    tokens = sum(each.loss_tokens for each in kept)
    return [each.weight / tokens for each in kept]


def test_the_default_is_the_mean_over_trained_tokens_and_leaves_samples_as_they_are() -> None:
    samples = (sample(3), sample(5, -0.5))
    assert weigh_samples(samples, loss()) == samples
    assert all(one is other for one, other in zip(weigh_samples(samples, loss()), samples, strict=True))
    assert weigh_samples((*samples, sample(7, 0.0)), loss()) == samples


def test_normalizations_by_hand() -> None:
    """Episodes of 2, 6 (in two samples of 4 and 2) and 8 tokens, the last without an advantage: 16 tokens, N = 3."""
    samples = [sample(2, episode="a"), sample(4, -1, "b"), sample(2, -1, "b"), sample(8, 0, "c")]
    assert coefficients(samples, loss()) == pytest.approx([1 / 8] * 3)
    assert coefficients(samples, loss("token")) == pytest.approx([1 / 16] * 3)
    assert coefficients(samples, loss("sequence")) == pytest.approx([1 / 6, 1 / 18, 1 / 18])
    assert coefficients(samples, loss("constant", 100)) == pytest.approx([1 / 300] * 3)


@pytest.mark.parametrize("term", ["kl_k1", "kl_k3", "entropy_coef"])
def test_a_regularized_loss_also_moves_what_has_no_advantage(term: str) -> None:
    samples = [sample(2, episode="a"), sample(6, 0, "b")]
    assert coefficients(samples, loss(**{term: 0.1})) == pytest.approx([1 / 8] * 2)
    assert coefficients(samples, loss("sequence", **{term: 0.1})) == pytest.approx([1 / 4, 1 / 12])
    assert counts_neutral(loss(**{term: 0.1})) and not counts_neutral(loss(**{term: 0.0}))
    assert loss(**{term: 0.1}).needs_reference == term.startswith("kl")


def test_which_normalizations_count_members_without_an_advantage() -> None:
    assert not counts_neutral(loss(clip_low=0.2))
    assert all(counts_neutral(loss(name, length)) for name, length in (("token", 0), ("sequence", 0), ("constant", 1)))


def test_samples_without_a_name_are_episodes_of_their_own() -> None:
    same = sample(4)
    assert coefficients([same, same], loss("sequence")) == pytest.approx([1 / 8, 1 / 8])


@pytest.mark.parametrize("normalization", ["trained", "token", "sequence", "constant"])
def test_nothing_to_learn_from_is_no_sample(normalization: str) -> None:
    spec = loss(normalization, 5.0 if normalization == "constant" else 0.0)
    assert weigh_samples([], spec) == weigh_samples([sample(3, 0.0)], spec) == ()


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([0.0, 1.0, -0.5]), st.sampled_from("abc")), min_size=1, max_size=9
    ),
    st.sampled_from(["token", "sequence"]),
    st.integers(0, 9),
)
def test_coefficients_are_those_of_a_mean_and_do_not_depend_on_order(
    rows: list[tuple[int, float, str]], normalization: str, seed: int
) -> None:
    samples = [sample(tokens, advantage, episode) for tokens, advantage, episode in rows]
    spec = loss(normalization, kl_k3=0.1)  # so that nothing is left out
    found = coefficients(samples, spec)
    assert sum(each * one.loss_tokens for each, one in zip(found, samples, strict=True)) == pytest.approx(1)
    by_episode: dict[str, float] = defaultdict(float)
    for each, one in zip(found, samples, strict=True):
        by_episode[one.episode] += each * one.loss_tokens
    if normalization == "sequence":
        assert list(by_episode.values()) == pytest.approx([1 / len(by_episode)] * len(by_episode))
    order = random.Random(seed).sample(range(len(samples)), len(samples))
    assert coefficients([samples[at] for at in order], spec) == pytest.approx([found[at] for at in order])


@pytest.mark.parametrize(
    ("normalization", "length", "reason"),
    [
        ("mean", 0.0, "normalization\n.*'trained', 'token', 'sequence' or 'constant'"),
        ("constant", 0.0, "must be above 0 with normalization=constant"),
        ("constant", float("nan"), "normalization_length\n.*finite number"),
        ("token", 5.0, "and 0 with any other"),
    ],
)
def test_normalizations_that_make_no_sense_are_refused(normalization: str, length: float, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        loss(normalization, length)
