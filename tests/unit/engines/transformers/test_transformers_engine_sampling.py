"""Draws: reproducible, independent of neighbours, from the right distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.types import Sampling

torch = pytest.importorskip("torch")

from finqa_plugins.engines.transformers import sampling  # noqa: E402
from finqa_plugins.engines.transformers.sampling import Sampler, uniforms  # noqa: E402

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


PLACES = st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 2**20))


@given(rows=st.lists(PLACES, min_size=1, max_size=5), count=st.integers(1, 50))
def test_uniforms_are_a_pure_function_of_seed_and_place(rows: list[tuple[int, int]], count: int) -> None:
    seeds, begins = map(list, zip(*rows, strict=True))
    drawn = uniforms(seeds, count, begins)
    assert drawn.shape == (len(rows), count) and bool(((drawn >= 0) & (drawn < 1)).all())
    for row, (seed, begin) in enumerate(rows):
        assert drawn[row].tolist() == uniforms([seed], count + 7, [begin])[0, :count].tolist()
        assert drawn[row].tolist() == [splitmix(seed, begin + place) for place in range(count)]


def splitmix(seed: int, place: int) -> float:
    """Number `place` of a seed, in Python's integers: SplitMix64 of the mixed seed, the first 48 bits of 64."""

    def mix(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    golden = 0x9E3779B97F4A7C15
    return (mix((mix((seed + golden) % 2**64) + (place + 1) * golden) % 2**64) >> 16) / 2**48


def test_uniforms_are_uniform_over_places_and_over_neighbouring_seeds() -> None:
    for values in (uniforms([3], 20_000)[0], uniforms(range(20_000), 1)[:, 0]):
        tensor = torch.from_numpy(values)
        assert abs(tensor.mean().item() - 0.5) < 0.01
        assert abs(tensor.var().item() - 1 / 12) < 0.002
        counts = torch.histc(tensor, 20, 0, 1)
        assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-squared, 19 degrees of freedom: p < 1e-4 beyond


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.05])
def test_frequencies_and_logprobs_are_those_of_the_distribution(temperature: float, top_p: float) -> None:
    count = 20_000
    settings = [Sampling(temperature=temperature, top_p=top_p, seed=seed, max_tokens=1) for seed in range(count)]
    ids, logprobs = Sampler.of(settings, 1, CPU).draw(LOGITS.expand(count, -1), 0)
    probs = (LOGITS / temperature).softmax(-1)
    kept = [token for token in range(5) if probs[:token].sum() < top_p]
    mass = sum(probs[token].item() for token in kept)
    for token in range(5):
        expected = probs[token].item() / mass if token in kept else 0.0
        assert abs((ids == token).float().mean().item() - expected) < 0.015
        if expected > 0.01:
            assert logprobs[ids == token][0].item() == pytest.approx(math.log(expected), abs=1e-5)


def test_greedy_rows_take_the_best_token_and_report_the_untempered_logprob() -> None:
    settings = [Sampling(temperature=0, top_p=0.3, seed=1), Sampling(temperature=1, seed=1)]
    sampler = Sampler.of(settings, 4, CPU)
    ids, logprobs = sampler.draw(LOGITS.expand(2, -1), 0)
    assert ids[0] == 0
    assert logprobs[0].item() == pytest.approx(LOGITS.log_softmax(-1)[0].item(), abs=1e-6)
    swapped, _ = sampler.select(torch.tensor([1, 0])).draw(LOGITS.expand(2, -1), 0)
    assert swapped.tolist() == ids.tolist()[::-1]


@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=8), top_p=st.sampled_from([1.0, 0.7]))
def test_a_row_draws_the_same_alone_and_among_others(seeds: list[int], top_p: float) -> None:
    settings = [Sampling(seed=seed, temperature=0.5 + seed % 3, top_p=top_p, max_tokens=3) for seed in seeds]
    logits = torch.randn(len(seeds), 50, generator=torch.Generator().manual_seed(sum(seeds)))
    together, _ = Sampler.of(settings, 3, CPU).draw(logits, 2)
    alone = [Sampler.of([each], 3, CPU).draw(logits[row : row + 1], 2)[0] for row, each in enumerate(settings)]
    assert together.tolist() == [int(ids) for ids in alone]


def drawn_from_all(settings: list[Sampling], logits: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw for every row, and replace the tokens of greedy rows."""
    greedy = torch.tensor([sampling.temperature <= 0 for sampling in settings])
    warm = [
        replace(sampling, temperature=1.0, top_p=1.0) if sampling.temperature <= 0 else sampling
        for sampling in settings
    ]
    ids, logprobs = Sampler.of(warm, step + 1, CPU).draw(logits, step)
    best = logits.argmax(-1)
    own = logits.float().log_softmax(-1).gather(-1, best[:, None])[:, 0]
    return torch.where(greedy, best, ids), torch.where(greedy, own, logprobs)


@given(
    temperatures=st.lists(st.sampled_from([0.0, 0.7, 1.0, 1.5]), min_size=1, max_size=8),
    top_p=st.sampled_from([1.0, 0.7]),
    seed=st.integers(0, 2**30),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_greedy_rows_change_no_bit_of_the_others(
    temperatures: list[float], top_p: float, seed: int, dtype: torch.dtype
) -> None:
    settings = [Sampling(seed=seed + row, temperature=heat, top_p=top_p) for row, heat in enumerate(temperatures)]
    logits = (4 * torch.randn(len(settings), 307, generator=torch.Generator().manual_seed(seed))).to(dtype)
    for row, sampler in enumerate([Sampler.of(settings, 3, CPU)] * 2):
        order = torch.arange(len(settings)).flip(0) if row else torch.arange(len(settings))
        found = sampler.select(order).draw(logits[order], 2)
        for left, right in zip(found, drawn_from_all(settings, logits, 2), strict=True):
            assert torch.equal(left, right[order])


@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
def test_nothing_is_drawn_for_greedy_rows(temperatures: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    draw = sampling._draw
    monkeypatch.setattr(sampling, "_draw", lambda logits, *rest: (rows.append(len(logits)), draw(logits, *rest))[-1])
    settings = [Sampling(temperature=heat) for heat in temperatures]
    Sampler.of(settings, 1, CPU).draw(LOGITS.expand(3, -1), 0)
    assert rows == [1] * sum(heat > 0 for heat in temperatures)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((1000, 4), float("-inf"))
    logits[:, 2] = 0.0
    ids, logprobs = Sampler.of([Sampling(seed=seed) for seed in range(1000)], 1, CPU).draw(logits, 0)
    assert set(ids.tolist()) == {2}
    assert logprobs.abs().max() == 0
