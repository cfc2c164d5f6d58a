from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from fixtures.eval_outcomes import outcome as named_outcome

from benchmarks.seeds import simulate
from finqa_cli.statistics import (
    Design,
    Outcome,
    Variation,
    assumed_variation,
    attempts_for,
    compare_all,
    detectable,
    detectable_methods,
    observe,
    observed_variation,
    paired_difference,
    questions_for,
    seeds_for,
    t_quantile,
)


@pytest.mark.parametrize(
    ("questions", "unpaired", "half", "seven_tenths"),
    [(290, 11.6, 8.2, 6.4), (500, 8.9, 6.3, 4.8), (1147, 5.8, 4.1, 3.2)],
)
def test_the_figures_of_independent_questions(
    questions: int, unpaired: float, half: float, seven_tenths: float
) -> None:
    """In points, 80 % power, accuracy 0.5, one attempt: 2.80 sqrt(0.5 (1 - r) / n) by the normal distribution."""
    design = Design(questions=questions, companies=questions)
    for correlation, points in ((0.0, unpaired), (0.5, half), (0.7, seven_tenths)):
        found = 100 * detectable(design, assumed_variation(0.5, correlation, 0.8))
        assert found == pytest.approx(280.16 * math.sqrt(0.5 * (1 - correlation) / questions), rel=0.005)
        assert found == pytest.approx(points, abs=0.11)


def test_companies_attempts_and_comparisons_by_hand() -> None:
    variation = Variation(between=0.05, within=0.2, correlation=0.1)
    design = Design(questions=300, companies=30, attempts=4)
    # (2.0452 + 0.8542) sqrt((0.05 (1 + 9 * 0.1) + 0.2 / 4) / 300), t with 29 degrees of freedom
    assert detectable(design, variation) == pytest.approx(2.8994 * math.sqrt(0.145 / 300), rel=1e-4)
    assert detectable(replace(design, comparisons=10), variation) > detectable(design, variation)
    assert detectable(replace(design, companies=1), variation) == math.inf
    # A few large companies: a question drawn at random has 2 * 10 - 1 others about its company.
    uneven = replace(variation, unevenness=2.0)
    assert detectable(design, uneven) == pytest.approx(2.8994 * math.sqrt((0.05 * 2.9 + 0.05) / 300), rel=1e-4)


def test_what_is_needed_is_the_least_that_will_do() -> None:
    variation, design = assumed_variation(0.5, 0.5, 0.5), Design(questions=290, companies=290)
    questions = questions_for(0.03, design, variation)
    assert questions is not None
    assert detectable(Design(questions=questions, companies=questions), variation) <= 0.03
    assert detectable(Design(questions=questions - 1, companies=questions - 1), variation) > 0.03
    assert attempts_for(0.03, design, variation) == 8
    uneven = assumed_variation(0.5, 0.5, 0.615)
    assert attempts_for(0.03, design, uneven) is None, "attempts do not help where questions themselves differ"
    assert questions_for(1e-9, design, variation) is None


def test_a_planned_difference_is_found_as_often_as_planned() -> None:
    """Questions in companies, simulated with the planned variation: 80 % of the tests find the difference."""
    rng, companies, size, changing = random.Random(3), 40, 5, 0.3
    names = [str(company) for company in range(companies) for _ in range(size)]
    design = Design(questions=len(names), companies=companies)
    effect = detectable(design, Variation(between=changing, within=0.0))
    found, draws = 0, 600
    for _ in range(draws):
        better = [rng.random() < 0.5 + effect / changing / 2 for _ in names]
        differs = [rng.random() < changing for _ in names]
        first = [float(not change or up) for change, up in zip(differs, better, strict=True)]
        second = [float(not change or not up) for change, up in zip(differs, better, strict=True)]
        found += paired_difference(first, second, names).p_value < 0.05
    assert 0.76 <= found / draws <= 0.85


def test_methods_by_hand_and_the_fewest_seeds_that_will_do() -> None:
    variation, design = Variation(between=0.05, within=0.2, correlation=0.1), Design(questions=300, companies=30)
    # (0.05 * 1.9 + 0.2 / 3) / 300 of questions, and 2 * 0.04^2 / 3 of runs, estimated with 0.2 / 900 of noise
    questions, runs = (0.095 + 0.2 / 3) / 300, 2 * 0.04**2 / 3
    degrees = (questions + runs) ** 2 / (questions**2 / 29 + (runs + 0.2 / 900) ** 2 / 3)
    expected = (t_quantile(0.975, degrees) + t_quantile(0.8, degrees)) * math.sqrt(questions + runs)
    assert detectable_methods(design, variation, deviation=0.04, seeds=3) == pytest.approx(expected)
    assert detectable_methods(design, variation, deviation=0.04, seeds=1) == math.inf
    seeds = seeds_for(0.1, design, variation, deviation=0.04)
    assert seeds is not None and seeds > 2
    assert detectable_methods(design, variation, deviation=0.04, seeds=seeds) <= 0.1
    assert detectable_methods(design, variation, deviation=0.04, seeds=seeds - 1) > 0.1
    assert seeds_for(0.04, design, variation, deviation=0.04) is None, "seeds do not help where questions are too few"


@pytest.mark.parametrize(("seeds", "deviation", "least"), [(3, 0.07, 0.7), (5, 0.04, 0.75)])
def test_a_planned_difference_of_methods_is_found_about_as_often(seeds: int, deviation: float, least: float) -> None:
    """Methods and runs differ in the companies they are good at, by 5 points each; chances vary by 27 points."""
    design = Design(questions=150, companies=30)
    chances = 0.1**2 + 0.25**2 + 0.05**2 * 2 + deviation**2
    between = 2 * 0.05**2 * (1 + 1 / seeds)
    variation = Variation(between=between, within=2 * (0.25 - chances), correlation=1.0)
    effect = detectable_methods(design, variation, deviation=deviation, seeds=seeds)
    drawn = simulate(
        400,
        runs=(seeds, seeds),
        companies=30,
        per_company=5,
        spread=(deviation, deviation),
        seed=5,
        effect=effect,
    )
    found = [compare_all(each.scores, baseline="b")[0].paired.p_value < 0.05 for each in drawn]
    assert least <= sum(found) / len(found) <= 0.85


def outcome(question: int, company: int, member: int, correct: bool | None) -> Outcome:
    return named_outcome(f"q{question:04d}", f"c{company}", member, correct)


def test_the_components_of_variance_are_found_in_simulated_attempts() -> None:
    """Chances 0.2 or 0.8: accuracy 0.5, variance between questions 0.09, within 0.16, so repeated 0.09/0.25."""
    rng = random.Random(4)
    runs: list[list[Outcome]] = [[], []]
    for question in range(1500):
        shared = rng.choice((0.2, 0.8))
        for run, chance in zip(runs, (shared, rng.choice((shared, 1 - shared))), strict=True):
            run += [outcome(question, question // 5, member, rng.random() < chance) for member in range(4)]
    seen = observe(runs[0])
    assert (seen.questions, seen.companies, seen.attempts, seen.unevenness) == (1500, 300, 4.0, 1.0)
    assert seen.accuracy == pytest.approx(0.5, abs=0.03) and seen.company == pytest.approx(0.0, abs=0.03)
    assert seen.repeated == pytest.approx(0.36, abs=0.03)
    variation = observed_variation(runs[0], runs[1], repeated=0.5)
    # The chances differ by 0 or by +-0.6, each half of the time.
    assert variation.between == pytest.approx(0.18, abs=0.02) and variation.within == pytest.approx(0.32, abs=0.02)


def test_single_attempts_keep_the_spread_that_was_seen() -> None:
    first = [outcome(number, number, 0, number % 3 == 0) for number in range(60)]
    second = [outcome(number, number, 0, number % 4 == 0) for number in range(60)]
    total = Variation(between=0.0, within=0.0)
    for repeated in (0.0, 0.5, 1.0):
        total = observed_variation(first, second, repeated=repeated)
        assert total.between + total.within == pytest.approx(
            sum(((n % 3 == 0) - (n % 4 == 0) - 5 / 60) ** 2 for n in range(60)) / 59
        )
    assert total.within == 0.0
    same = observed_variation(first, first, repeated=0.0)
    assert same == replace(total, between=0.0), "attempts cannot have spread more than was seen"
    assert observe([*first, outcome(99, 99, 0, None)]).repeated is None
    with pytest.raises(ValueError, match="0 questions in common"):
        observed_variation(first, [outcome(1, 1, 0, None)], repeated=1.0)


@pytest.mark.parametrize(
    "wrong", [(0.0, 0.5, 0.6), (1.0, 0.5, 0.6), (0.5, 0.7, 0.6), (0.5, -0.1, 0.6), (0.5, 0.5, 1.1)]
)
def test_what_cannot_be_assumed_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="correlations"):
        assumed_variation(*wrong)
