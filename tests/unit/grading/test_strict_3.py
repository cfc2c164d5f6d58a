"""`strict-3`: one value in a common notation is graded, anything else is unreadable, for each truth."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.grader.corpora import Row, read_corpora
from finqa_cli.grading import grade

YEARS = "What were net sales in 2022 and 2023, in millions?"
Q = "What was the operating margin in 2023?"


def judged(answer: object, truth: str, question: str = "") -> str:
    verdict = grade(answer, truth, "strict-3", question)
    assert verdict.readable or verdict.again
    return "asked" if verdict.again else "paid" if verdict.reward else "wrong"


@pytest.mark.parametrize(
    ("answer", "truth", "question"),
    [
        ("1,234.5", "1234.5", ""),
        ("1.234,5", "1234.5", ""),
        ("1.234.567", "1234567", ""),
        ("(1,234)", "-1234", ""),
        ("$(5.25)", "-5.25", ""),
        ("($214.6 million)", "-214.6", "What was it in millions of dollars?"),
        ("1 234", "1234", ""),
        ("1'234.5", "1234.5", ""),
        ("1,23,456", "123456", ""),
        ("1.2e3", "1200", ""),
        ("33 1/3 %", "33.3333%", ""),
        ("\u22125.25", "-5.25", ""),
        ("\u20ac88,0 Mio.", "88 million", "What was it in euros?"),
        ("EUR 88.0 mn", "88 million", "What was it in euros?"),
        ("US$ 1.25 bn", "1,250", "What was revenue in millions of dollars?"),
        ("12,428.5", "12,428.5", "What was revenue in millions?"),
        ("$12,428.5 million", "12,428.5", "What was revenue in millions?"),
        ("12.4285 billion", "12,428.5", "What was revenue in millions?"),
        ("CHF 1'092.8 million", "1,092.8", "What was net revenue in millions of Swiss francs?"),
        ("C$8,814 million", "8,814", "What was net revenue in millions of Canadian dollars?"),
        ("Rs. 28.453 billion", "2,845.3", "What was the profit (in Rs. crore)?"),
        ("12.3 crore", "123000000", ""),
        ("4 lakh", "400000", ""),
        ("145 bps", "145", "By how many basis points did it change?"),
        ("1.45 percentage points", "145", "By how many basis points did it change?"),
        ("5.2", "5.2%", "What was the change in percent?"),
        ("5.2%", "5.2", "What was the change in percent?"),
        ("0.052 (5.2%)", "5.2%", Q),
        ("45 stores", "45", "How many stores were open?"),
        ("The operating margin in 2023 was 14.3%.", "14.3%", Q),
        ("Final answer: 14.3%", "14.3%", Q),
        ("The answer is **14.3%**.", "14.3%", Q),
        ("```\n14.3%\n```", "14.3%", Q),
        ('{"answer": "14.3%"}', "14.3%", Q),
        ('{"value": 14.3, "unit": "%"}', "14.3%", Q),
        (r"\boxed{14.3\%}", "14.3%", Q),
        (r"$\boxed{14.3\%}$", r"\boxed{14.3\%}", Q),
        ("4Q23", "Q4 2023", ""),
        ("fourth quarter of 2023", "Q4 2023", ""),
        ("Q4", "fourth quarter", "In which quarter of 2023 was it highest?"),
        ("31/12/2023", "December 31, 2023", ""),
        ("31-Dec-2023", "2023-12-31", ""),
        ("Yes.", "yes", ""),
        ("No, because the notes were repaid", "No", ""),
        ("alphabet inc", "Alphabet Inc.", ""),
        ("The segment with the highest sales was Films", "Films", "Which segment had the highest sales?"),
        ("Research & Development", "research and development", ""),
        ("R&D", "Research and development", ""),
        ("UK", "United Kingdom", ""),
        ("Nestle", "Nestl\u00e9 S.A.", ""),
        ("2023: 530; 2022: 512", "2022: 512, 2023: 530", YEARS),
        ('{"2022": 512, "2023": "530 million"}', "2022: 512, 2023: 530", YEARS),
        ("[512, 530]", "[512, 530]", YEARS),
        ("FY2022 512; FY23 530", "2022: 512, 2023: 530", YEARS),
        ("Retail and Energy Services", '["Energy Services", "Retail"]', "Which segments lost money?"),
    ],
)
def test_common_notations_are_paid(answer: str, truth: str, question: str) -> None:
    assert judged(answer, truth, question) == "paid"


@pytest.mark.parametrize(
    ("answer", "truth", "question"),
    [
        ("14.3 or 15.1", "14.3", Q),
        ("14-15", "14", Q),
        ("14.3?", "14.3", Q),
        ("not 14.3", "14.3", Q),
        ("14.3 in 2022", "14.3", Q),
        ("14.3, 15.1", "14.3", Q),
        (r"\boxed{14.3} \boxed{15.1}", "14.3", Q),
        ("Answer: 14.3\nAnswer: 15.1", "14.3", Q),
        ("14\u200b.3", "14.3", Q),
        ("\u0661\u0664.3", "14.3", Q),
        ("~~14.3~~", "14.3", Q),
        ("5/6/2023", "May 6, 2023", ""),
        ("Yes, no", "Yes", ""),
        ("Yes, it fell by 5", "Yes", ""),
        ("Operating income divided by sales, so 14.3", "14.3", Q),
        ("", "14.3", Q),
        ("the margin rose", "14.3", Q),
        ('{"answer": 14.3, "alternative": 15.1}', "14.3", Q),
        ("Increase/Decrease", "Decrease", "Did it increase or decrease?"),
        ("\u20ac5.25", "$5.25", ""),
    ],
)
def test_what_is_not_exactly_one_value_is_asked_again(answer: str, truth: str, question: str) -> None:
    assert judged(answer, truth, question) == "asked"


@pytest.mark.parametrize(
    ("answer", "truth", "question"),
    [
        ("15.1%", "14.3%", Q),
        ("1430%", "14.3%", Q),
        ("-14.3%", "14.3%", Q),
        ("$77", "77 million", ""),
        ("$77 billion", "77", "What was revenue in millions?"),
        ("2022", "2023", "In which year was it highest?"),
        ("2022.6", "2023", "In which year was it highest?"),
        ("No", "Yes", ""),
        ("Paper", "Films", "Which segment had the highest sales?"),
        ("F", "Films", "Which segment had the highest sales?"),
        ("US", "United Kingdom", ""),
        ("2022: 530, 2023: 512", "2022: 512, 2023: 530", YEARS),
    ],
)
def test_another_value_is_wrong_and_not_asked_again(answer: str, truth: str, question: str) -> None:
    assert judged(answer, truth, question) == "wrong"


@given(
    answer=st.lists(
        st.sampled_from(
            [
                "5",
                "-12.5",
                "%",
                " million",
                "2.1 billion",
                "$",
                "2023",
                ": ",
                ", ",
                " or ",
                "(",
                ")",
                " the ",
                "margin",
                "?",
            ]
        )
    ).map("".join),
    truths=st.lists(st.sampled_from(["5", "-12.5%", "77 million", "2023", "1234"]), min_size=2, max_size=2),
)
def test_who_is_asked_again_learns_nothing_about_the_truth(answer: str, truths: list[str]) -> None:
    verdicts = [grade(answer, truth, "strict-3", Q) for truth in truths]
    assert len({(verdict.readable, verdict.again) for verdict in verdicts}) == 1


@pytest.mark.parametrize(
    "answer", ["$2.1 billion", "approximately $2.1 billion", "($2.1bn)", "2022: 2.1 billion; 2023: 5"]
)
def test_a_decimal_of_two_digits_before_a_scale_is_asked_again_and_then_graded_as_it_is(answer: str) -> None:
    found = {}
    for truth in ("2,098 million", "2.1 billion", "-2.1 billion", "7 million", "2022: 2.1 billion, 2023: 5"):
        if ("2022" in truth) == ("2022" in answer):
            verdict = grade(answer, truth, "strict-3", "What was it in 2022 and 2023?" if "2022" in answer else "")
            found[truth] = verdict.reward
            assert verdict.readable and "at least 3 digits" in verdict.again
    assert sum(found.values()) == 1, "one of the truths is that value"


@pytest.mark.parametrize("answer", ["77 million", "$2.10 billion", "2.1", "2.1%", "12,428.5 million", "4 lakh"])
def test_a_whole_number_or_three_digits_before_a_scale_are_graded_at_once(answer: str) -> None:
    assert grade(answer, "5", "strict-3").again == ""


@pytest.mark.parametrize("name", ["Films", "Paper", "Specialty Paper", "Energy and Mining"])
def test_a_wrong_name_is_as_readable_as_the_right_one(name: str) -> None:
    question = "Which segment had the highest sales?"
    for answer in ("Films", "the Paper segment", "Films had the highest sales", "Energy (5)", "Films or Paper"):
        assert grade(answer, name, "strict-3", question).readable == (judged(answer, "Other", question) != "asked")


@pytest.mark.parametrize(
    "answer", ["Films: 5, Paper: 6", "Glass: 5, Paper: 6", "Films 5, Paper 6", "5 and 6", "Films: 5 or 6, Paper: 6"]
)
def test_labels_that_the_question_does_not_have_show_nothing_either(answer: str) -> None:
    question = "What was the income of each segment?"
    truths = ("Films: 5, Paper: 6", "Glass: 7, Wood: 8", "Toys: 1, Books: 2")
    assert len({grade(answer, truth, "strict-3", question).readable for truth in truths}) == 1
    assert judged("Paper: 6, Films: 5", truths[0], question) == "paid"
    assert judged("Glass: 5, Paper: 6", truths[0], question) == "wrong"


def test_forms_and_hacks_of_the_corpora() -> None:
    rows: dict[str, list[Row]] = {"honest": [], "hacks": []}
    for part in read_corpora().values():
        for kind, found in part.items():
            rows[kind] += found
    honest, hacks = (Counter(judged(row.answer, row.truth, row.question) for row in rows[kind]) for kind in rows)
    assert honest["wrong"] <= 0.01 * honest.total() and honest["paid"] >= 0.6 * honest.total()
    assert hacks["paid"] <= 3 / 783 * hacks.total()


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("Aerospace; Power", "Aerospace; Power", True),
        ("Power and Aerospace", "Aerospace; Power", True),
        ('["Power", "Aerospace"]', "Aerospace; Power", True),
        ("Carvana, Wayfair", "Wayfair Inc.; Carvana Co.", True),
        ("Apple Inc.; Meta Platforms, Inc.", "Meta Platforms, Inc.; Apple Inc.", True),
        ("Power", "Aerospace; Power", False),
        ("Power; Energy", "Aerospace; Power", False),
        ("2023: Meta Platforms; 2022: Apple", "2022: Apple Inc.; 2023: Meta Platforms, Inc.", True),
        ("2022: Meta Platforms; 2023: Apple", "2022: Apple Inc.; 2023: Meta Platforms, Inc.", False),
    ],
)
def test_names_are_listed_in_any_order_or_by_label(answer: str, truth: str, right: bool) -> None:
    assert (grade(answer, truth, "strict-3", "Which of them?").reward == 1.0) is right
