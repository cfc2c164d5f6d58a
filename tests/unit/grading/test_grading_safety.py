"""All profiles, on arbitrary input."""

from __future__ import annotations

import math
import random

import pytest
from grading_tables import ATTACKS, KEYED
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.grading import MAX_ANSWER_BYTES, PROFILES, grade
from finqa_cli.grading.closeness import RELATIVE

VERSIONED = [profile for profile in PROFILES if profile != "strict"]
VERSIONS = ["strict-1", "strict-3"]
QUESTIONS = [
    "",
    "What was it in 2023, in millions?",
    "In which year was it highest?",
    "How many were there?",
    "Did it rise?",
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
SYNTAX = ["\\boxed{", "\\text{", "\\frac{", *"}{()-$%,;: \n/.=", ", "]
PROSE = [
    "the answer is ",
    "so ",
    "not ",
    "fell by ",
    "from ",
    "i.e. ",
    " = ",
    "five ",
    "half",
    "(5%)",
    '{"answer": ',
    "<answer>",
]
WORDS = ["0", "5", "12", "1,234", "2023", "2024: ", " to ", " and ", " or ", "e9", "million", "bps", "yes", "nan"]
FRAGMENTS = st.lists(st.sampled_from([*SYNTAX, *WORDS, *PROSE]), max_size=30).map("".join)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("profile", "question"),
    [(profile, question) for profile in VERSIONED for question in (QUESTIONS if profile == "strict-3" else [""])],
)
@pytest.mark.parametrize("truth", ["6.118", r"\boxed{1} \boxed{2}", r"\boxed{2022: 1, 2023: 2}", KEYED, "Yes"])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_answers_cost_no_time_and_win_nothing(profile: str, question: str, truth: str) -> None:
    for answer in ATTACKS:
        assert grade(answer, truth, profile, question).reward == 0, answer[:40]


@pytest.mark.parametrize("profile", VERSIONED)
@pytest.mark.parametrize("bait", [attack for attack in ATTACKS if len(attack) >= 3000])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_a_hostile_truth_costs_no_time_either(profile: str, bait: str) -> None:
    for answer in (bait, bait[: len(bait) // 2]):
        assert grade(answer, bait, profile).reward in (0.0, 1.0)


@pytest.mark.parametrize("profile", VERSIONED)
@pytest.mark.parametrize(
    "answer",
    ["6.118" + " " * MAX_ANSWER_BYTES, "é" * (MAX_ANSWER_BYTES // 2 + 1), 10**MAX_ANSWER_BYTES, -(10**9999)],
    ids=["blanks", "bytes", "digits", "many digits"],
)
def test_long_answers_are_refused(profile: str, answer: object) -> None:
    assert "longer than 4096 bytes" in grade(answer, "6.118", profile).explanation


@pytest.mark.parametrize("profile", VERSIONED)
@pytest.mark.parametrize("answer", [None, True, False, [6.118], {"answer": 6.118}, b"6.118", math.nan, math.inf])
def test_what_is_neither_text_nor_a_number_is_refused(profile: str, answer: object) -> None:
    for truth in ("6.118", "1", "0", "yes", "true", "nan", ""):
        assert grade(answer, truth, profile).reward == 0


def test_an_unknown_profile_is_an_error() -> None:
    with pytest.raises(ValueError, match="openenv, strict, strict-1, strict-3"):
        grade("1", "1", "lenient")


@pytest.mark.parametrize("profile", VERSIONED)
@given(
    answer=JSON_VALUES | FRAGMENTS | st.text(max_size=300),
    truth=FRAGMENTS | st.sampled_from(["6.118", KEYED, "Yes", "Alphabet Inc.", "2023"]) | st.text(max_size=100),
    question=st.sampled_from(QUESTIONS) | st.text(max_size=100),
)
def test_anything_gets_a_verdict(profile: str, answer: object, truth: str, question: str) -> None:
    verdict = grade(answer, truth, profile, question)
    assert verdict.reward in (0.0, 1.0)
    assert verdict.explanation
    assert "\n" not in verdict.explanation
    assert verdict.explanation.isprintable()


@pytest.mark.parametrize("version", VERSIONS)
@given(truth=FRAGMENTS | st.sampled_from(["", ".", "nan", "\\boxed{}", "\\boxed{}\\boxed{}", ":"]))
def test_strict_pays_nothing_for_no_answer(version: str, truth: str) -> None:
    for answer in ("", " ", ".", "nan", "\\boxed{}", "\\boxed{}\\boxed{}", ",", ":"):
        assert grade(answer, truth, version).reward == 0


APART = ["0.0005", "0.05", "-0.05", "0.12", "0.5", "5", "-5", "5.5", "12", "-12", "50", "125", "500", "512", "1234"]
APART += ["12345", "2023", "2024", "5000000", "12000000", "-5000000", "5e9", "yes", "no"]


@pytest.mark.parametrize("version", VERSIONS)
@given(answer=FRAGMENTS)
def test_no_answer_is_right_for_two_truths(version: str, answer: str) -> None:
    assert len([truth for truth in APART if grade(answer, truth, version).reward]) <= 1


@pytest.mark.parametrize("version", VERSIONS)
@given(
    number=st.decimals(min_value=-(10**12), max_value=10**12, places=4),
    unit=st.sampled_from(["", "%", " million", " bps"]),
)
def test_the_usual_ways_to_write_the_truth_are_right(version: str, number: object, unit: str) -> None:
    text = f"{number:,f}"
    boxed = f"\\boxed{{{text}}}{unit}"
    bracketed = f"({text.removeprefix('-')}){unit}" if text.startswith("-") else f"${text}{unit}"
    for answer in (f"{text}{unit}", f"{number:f}{unit}", bracketed, boxed, f"The answer is {boxed}."):
        assert grade(answer, boxed, version).reward == 1, answer


@pytest.mark.parametrize("version", VERSIONS)
@given(number=st.integers(min_value=-(10**15), max_value=10**15))
def test_whole_numbers_are_right_exactly(version: str, number: int) -> None:
    assert grade(number, f"{number:,}", version).reward == 1
    assert grade(f"{number:,}", f"\\boxed{{{number}}}", version).reward == 1
    if abs(number) < 1000:
        assert grade(number + 1, f"{number:,}", version).reward == 0


@pytest.mark.parametrize("version", VERSIONS)
@given(
    number=st.decimals(min_value=-(10**12), max_value=10**12, places=3),
    times=st.floats(min_value=1.001, max_value=1e6),
)
def test_numbers_outside_the_tolerance_are_never_right(version: str, number: object, times: float) -> None:
    truth = float(str(number))
    wrong = truth + (times * float(RELATIVE) * abs(truth) or times)
    assert grade(repr(wrong), f"{number:f}", version).reward == 0


@pytest.mark.parametrize("version", VERSIONS)
@given(
    values=st.dictionaries(st.integers(1900, 2099), st.integers(-(10**6), 10**6), min_size=2, max_size=8),
    rng=st.randoms(use_true_random=False),
)
def test_the_order_of_a_list_with_years_is_free(version: str, values: dict[int, int], rng: random.Random) -> None:
    truth = ", ".join(f"{year}: {value}" for year, value in values.items())
    shuffled = rng.sample(sorted(values), len(values))
    answer = ", ".join(f"{year}: {values[year]:,}" for year in shuffled)
    assert grade(answer, truth, version).reward == 1
    off_by_one = ", ".join(f"{year}: {values[year] + (year == shuffled[0])}" for year in shuffled)
    assert abs(values[shuffled[0]]) > 1000 or grade(off_by_one, truth, version).reward == 0


@pytest.mark.thorough
@pytest.mark.parametrize("version", VERSIONS)
def test_random_answers_are_almost_never_right(version: str) -> None:
    rng = random.Random(0)
    truths = ["6.118", r"\boxed{6.28\%}", r"\boxed{-77} million", "1,070", "2023: 59, 2024: 58", KEYED, "0.0215"]
    accepted = sum(grade(_random_answer(rng), rng.choice(truths), version).reward for _ in range(10_000))
    assert accepted <= 5


def _random_answer(rng: random.Random) -> object:
    number = rng.choice([-1, 1]) * 10 ** rng.uniform(-3, 9)
    written = [f"{number:.2f}", f"{number:,.0f}", f"{number:.4g}%", f"({number:.1f})", f"\\boxed{{{number:.3f}}}"]
    parts = [rng.choice(written) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    unit = rng.choice(["", "", "", " million", " bps", " or 5", "%"])
    return rng.choice([", ", " and ", "; 2024: "]).join(parts) + unit if rng.random() < 0.9 else number
