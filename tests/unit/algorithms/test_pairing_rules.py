"""Which attempts are paired, for any rewards and texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.pairing import Candidate, Rule, choose_pairs

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        reward=st.sampled_from([-0.2, 0.0, 0.3, 0.5, 0.8, 1.0, 1.8]),
        right=st.booleans(),
        said=st.sampled_from(["a", "b", "c", "d", "e", "f"]),
    ),
    max_size=9,
)
RULES: list[Rule] = ["best-worst", "all", "right-wrong"]


def several(*rewards: float) -> list[Candidate]:
    return [Candidate(reward=reward, right=reward >= 1, said=str(n)) for n, reward in enumerate(rewards)]


def pairs(candidates: list[Candidate], rule: Rule, *, margin: float = 0.0, most: int = 99) -> set[tuple[int, int]]:
    return set(choose_pairs(candidates, rule=rule, margin=margin, most=most, seed=1).pairs)


def test_best_with_worst_then_second_best_with_second_worst() -> None:
    assert pairs(several(0.1, 1.0, 0.8, 0.0, 0.5), "best-worst") == {(1, 3), (2, 0)}
    assert pairs(several(0.1, 1.0, 0.8, 0.0, 0.5), "best-worst", margin=0.8) == {(1, 3)}
    assert choose_pairs(several(0.1, 1.0, 0.8, 0.0), rule="best-worst", margin=0, most=1, seed=0).pairs == ((1, 3),)


def test_all_pairs_that_differ_enough() -> None:
    assert pairs(several(0.0, 0.3, 1.0), "all") == {(1, 0), (2, 0), (2, 1)}
    assert pairs(several(0.0, 0.3, 1.0), "all", margin=0.7) == {(2, 0), (2, 1)}
    assert pairs(several(0.1 + 0.2, 0.0), "all", margin=0.3) == {(0, 1)}, "a margin is met in spite of rounding"


def test_right_with_wrong_only() -> None:
    assert pairs(several(0.0, 0.3, 1.0, 1.8), "right-wrong") == {(2, 0), (2, 1), (3, 0), (3, 1)}
    assert not pairs(several(0.0, 0.3, 0.5), "right-wrong")


def test_equal_texts_are_no_pair_and_are_counted() -> None:
    same = [Candidate(reward=reward, right=False, said="x") for reward in (0.0, 1.0)]
    found = choose_pairs(same, rule="all", margin=0, most=9, seed=0)
    assert found.pairs == () and found.equal_texts == 1


@given(
    candidates=CANDIDATES,
    rule=st.sampled_from(RULES),
    margin=st.sampled_from([0.0, 0.2, 0.5, 2.5]),
    most=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_whatever_the_candidates_pairs_keep_the_rules(
    candidates: list[Candidate], rule: Rule, margin: float, most: int, seed: int
) -> None:
    found = choose_pairs(candidates, rule=rule, margin=margin, most=most, seed=seed)
    assert found == choose_pairs(candidates, rule=rule, margin=margin, most=most, seed=seed)
    assert len(found.pairs) <= most
    texts = [(candidates[first].said, candidates[second].said) for first, second in found.pairs]
    assert len(set(texts)) == len(texts) and not {(b, a) for a, b in texts} & set(texts)
    for first, second in found.pairs:
        better, worse = candidates[first], candidates[second]
        assert better.said != worse.said
        assert better.reward > worse.reward and better.reward - worse.reward >= margin - 1e-9
        assert rule != "right-wrong" or (better.right and not worse.right)
    if rule == "best-worst":
        used = [index for pair in found.pairs for index in pair]
        assert len(set(used)) == len(used)


@given(candidates=CANDIDATES, rule=st.sampled_from(["all", "right-wrong"]))
def test_nothing_that_could_be_a_pair_of_texts_is_missed(candidates: list[Candidate], rule: Rule) -> None:
    found = choose_pairs(candidates, rule=rule, margin=0, most=99, seed=0)
    said = {frozenset((candidates[a].said, candidates[b].said)) for a, b in found.pairs}
    for better in candidates:
        for worse in candidates:
            preferred = better.reward > worse.reward and better.said != worse.said
            if preferred and (rule == "all" or (better.right and not worse.right)):
                assert frozenset((better.said, worse.said)) in said


def test_the_seed_chooses_among_many() -> None:
    chosen = {choose_pairs(several(*range(8)), rule="all", margin=0, most=2, seed=seed).pairs for seed in range(6)}
    assert len(chosen) > 1


@pytest.mark.parametrize(("margin", "most"), [(-0.1, 1), (float("nan"), 1), (0.0, 0)])
def test_numbers_out_of_range_are_refused(margin: float, most: int) -> None:
    with pytest.raises(ValueError, match="margin must be 0 or more"):
        choose_pairs([], rule="all", margin=margin, most=most, seed=0)
