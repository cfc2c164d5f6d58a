from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.rewards.reward_comparison import Match, compare, is_prose
from finqa_plugins.rewards.spec import Tolerances


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("1,234.50", "1234.5"),
        ("$ 1234.50", "1234.5"),
        ("(32)", "-32"),
        ("-32", "(32)"),
        ("−32", "-32"),  # noqa: RUF001  the minus sign
        (r"\boxed{42}", "42"),
        ("42", r"\boxed{42}"),
        ("50%", "0.5"),  # exe_ans as a ratio
        ("12.25%", "12.25"),  # exe_ans in percent
        ("0.209", "20.9%"),
        ("20.9", "20.9%"),
        ("20.9 percent", "20.9%"),
        ("9.4", "9.4 million"),
        ("9,400,000", "9.4 million"),
        ("0.161290323", "0.16129"),  # rounded to 5 decimals, as exe_ans is
        ("16.1290323%", "0.16129"),
        ("1e-05", "0.00001"),
        ("Yes.", "yes"),
        ("NO", "no"),
        ("lower interest rate", "Lower interest rate."),
        ("45", "45 stores"),
        ("45 stores", "45 stores"),
        ("Alphabet, Inc.", r"\boxed{\text{Alphabet, Inc.}}"),
        # what stands beside \boxed
        ("0.125", r"\boxed{12.5}\%"),
        ("12.5%", r"\boxed{12.5}\%"),
        ("-77 million", r"\boxed{-77} million"),
        ("-77", r"\boxed{-77} million"),
        ("-5", r"-\boxed{5}"),
        (r"-\boxed{5}", "-5"),
        (r"\boxed{12.5}\%", "0.125"),
        # lists
        ("1, 2", r"\boxed{1} and \boxed{2}"),
        (r"\boxed{1}, \boxed{2}", r"\boxed{1} and \boxed{2}"),
        ("2024: 58, 2023: 59", "2023: 59, 2024: 58"),
        ("Foreign: 6, Domestic: 5", r"\boxed{\text{Domestic}: 5, \text{Foreign}: 6}"),
        ("yes, 5", r"\boxed{Yes}, \boxed{5}"),
        ("0.1, 20%", r"\boxed{10\%, 20\%}"),
    ],
)
def test_the_same(answer: str, truth: str) -> None:
    assert compare(answer, truth).exact


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("50", "0.5"),  # 100 times the truth counts only with a percent sign
        ("0.5", "50"),
        ("0.5%", "50%"),
        ("9.4 million", "9.4"),
        ("32", "-32"),
        ("12 or 13", "12"),
        ("12, 13", "12"),
        (r"\boxed{12} \boxed{13}", "12"),
        ("yes", "no"),
        ("yes and no", "yes"),
        ("1", "yes"),
        ("yes", "1"),
        ("", ""),
        ("", "0"),
        ("0", ""),
        ("%", "%"),
        ("nan", "12"),
        ("inf", "12"),
        ("1_2", "12"),
        ("١٢", "12"),
        ("12" + " " * 5000, "12"),
        (r"-\boxed{5}", "5"),
        ("5", r"-\boxed{5}"),
        ("-77 billion", r"\boxed{-77} million"),
        ("45 or forty six", "45"),
        ("5%0", "50"),
        ("1", r"\boxed{1} and \boxed{2}"),
        ("2, 1", r"\boxed{1} and \boxed{2}"),
        ("1, 2, 2", r"\boxed{1} and \boxed{2}"),
        ("no, 5", r"\boxed{Yes}, \boxed{5}"),
        ("2023: 59, 2025: 58", "2023: 59, 2024: 58"),
    ],
)
def test_not_the_same_and_not_close(answer: str, truth: str) -> None:
    match = compare(answer, truth)
    assert not match.exact and not match.within(Tolerances())


def test_the_relative_error_and_which_tolerance_applies() -> None:
    assert compare("1001", "1000") == Match(relative=0.001)
    assert compare("50.5%", "50%") == Match(relative=0.01, in_percent=True)
    assert compare("0.505", "50%") == Match(relative=0.01, in_percent=True)
    assert compare("50.5%", "0.5") == Match(relative=0.01)
    assert compare("-900", "-1000") == Match(relative=0.1)
    assert compare("2001", "1000") == Match()
    assert compare("51%", "50%").within(Tolerances()) and not compare("51.1%", "50%").within(Tolerances())
    assert compare("1050", "1000").within(Tolerances()) and not compare("1051", "1000").within(Tolerances())


def test_a_list_is_as_far_off_as_its_worst_value() -> None:
    assert compare("100, 202", "100, 200") == Match(relative=0.01)
    assert compare("yes, 202%", r"\boxed{yes}, \boxed{200\%}") == Match(relative=0.01, in_percent=True)
    assert compare("100, 500", "100, 200") == Match()


@pytest.mark.parametrize(
    ("truth", "prose"),
    [("12.5", False), ("Yes.", False), (r"\boxed{1}, \boxed{no}", False), ("", True), ("a lower rate", True)],
)
def test_numbers_yes_and_no_can_be_judged(truth: str, prose: bool) -> None:
    assert is_prose(truth) is prose


def test_around_a_truth_of_zero() -> None:
    assert compare("0.00", "0").exact and compare("-0", "0%").exact
    assert compare("0.0009", "0") == Match(relative=0.0)
    assert compare("0.001", "0") == Match()


def test_numbers_of_any_size_are_compared() -> None:
    assert compare("9" * 90 + "e99", "0." + "0" * 80 + "1e-99") == Match()
    assert compare("1e99", "1.01e99").relative == pytest.approx(1 / 101)


@given(st.text(), st.text())
def test_any_two_texts_are_compared(answer: str, truth: str) -> None:
    match = compare(answer, truth)
    assert match.relative is None or 0 <= match.relative <= 1
    assert match == compare(answer, truth)


@given(st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=4))
def test_a_number_is_itself_however_it_is_written(number: object) -> None:
    for written in (f"{number}", f"{number:,}", f"$ {number}", f"{number}%"):
        match = compare(written, f"{number}")
        assert match.exact and match.relative == 0


@pytest.mark.parametrize("piece", [r"\boxed{", r"\text{", "(", "1,", "%", "e", "\\frac{1}{", "$"])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_text_takes_linear_time(piece: str) -> None:
    for size in (4000 // len(piece), 10**6):
        assert compare(piece * size, "12") == compare("12", piece * size) == Match()
