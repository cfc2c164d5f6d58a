"""Profile `strict-2`: its corpora, its forms, what the question adds, and what stands beside a decision."""

from __future__ import annotations

import json
from pathlib import Path

import fixtures
import pytest

from benchmarks.grader.corpora import measure, read_corpora
from finqa_cli.grading import STRICT, grade, versioned

FORMS = Path(fixtures.__path__[0]) / "strict_2_forms.jsonl"


def rows(reward: int) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in FORMS.read_text(encoding="utf-8").splitlines()]
    return [
        (row["question"], row["truth"], answer) for row in found if row["reward"] == reward for answer in row["answers"]
    ]


def paid(answer: str, truth: str, question: str = "") -> float:
    return grade(answer, truth, "strict-2", question).reward


def test_strict_is_the_newest_version() -> None:
    assert versioned("strict") == STRICT == "strict-2"
    assert versioned("openenv") == "openenv"
    assert grade("The ratio is 6.118.", "6.118", "strict") == grade("The ratio is 6.118.", "6.118", "strict-2")
    assert grade("The ratio is 6.118.", "6.118", "strict-1").reward == 0


@pytest.mark.parametrize("part", ["dev", "dev2"])
def test_the_development_parts_of_the_corpora(part: str) -> None:
    found = measure(read_corpora()[part], "strict-2")
    assert [row.id for row in found.refused] == []
    assert [row.id for row in found.paid] == []


@pytest.mark.parametrize("part", ["dev3", "dev4", "dev5", "dev6", "dev7"])
def test_no_hack_of_the_later_development_parts_is_paid(part: str) -> None:
    assert [row.id for row in measure(read_corpora()[part], "strict-2").paid] == []


def test_forms_with_one_decision_are_taken() -> None:
    refused = [(truth, answer) for question, truth, answer in rows(1) if not paid(answer, truth, question)]
    assert refused == []


def test_forms_without_one_are_refused() -> None:
    taken = [(truth, answer) for question, truth, answer in rows(0) if paid(answer, truth, question)]
    assert taken == []


IN_MILLIONS = "By how much did net income change in 2023, in millions?"


@pytest.mark.parametrize(
    ("answer", "truth", "question", "reward"),
    [
        ("-$77 million", "-77", "", 0),
        ("-$77 million", "-77", IN_MILLIONS, 1),
        ("-77 thousand", "-77", IN_MILLIONS, 0),
        ("525 basis points", "0.0525", "What was the growth rate?", 1),
        ("525 basis points", "525", "By how many basis points did it grow?", 1),
        ("0.0525 percentage points", "0.0525", "What was the growth rate?", 0),
        ("4.5 pp", "4.5", "", 1),
        ("The 2022 figure is 642", "642", "What was it in 2023?", 0),
        ("The 2023 figure is 642", "642", "What was it in 2023?", 1),
        ("It exceeded 1 billion dollars in 7 years.", "7", "In how many years was it over 1 billion dollars?", 1),
        ("2021, with net income of $4.2 billion", "2021", "In which year was net income highest?", 1),
        ("a decrease of 5%", "0.05", "By how much did it decrease?", 1),
        ("a decrease of 5%", "0.05", "What was the growth rate?", 0),
        ("9,513 shares", "9513", "What were total assets, in dollars?", 0),
        ("4.99", "5", "How many members were there?", 0),
        ("Gross profit was 642", "642", "What was cost of goods sold?", 0),
        ("Yes, it fell.", "Yes", "Did gross margin improve?", 0),
        ("The net margin was 1% in 2022.", "0.01", "x" * 601 + " 2023", 1),
    ],
)
def test_the_question_says_what_is_asked_for(answer: str, truth: str, question: str, reward: int) -> None:
    assert paid(answer, truth, question) == reward


@pytest.mark.parametrize(
    "answer",
    [
        r"not \boxed{5}",
        r"The answer is not \boxed{5}",
        r"\boxed{5} is wrong",
        r"\boxed{5}? I guess",
        r"1/\boxed{5}",
        r"\boxed{5} + 1",
        r"\boxed{5}^2",
        r"\boxed{\cancel{5}}",
        r"\phantom{5}6",
        "<answer>5</answer> or 6",
        "<answer>6</answer>5",
        "<del>5</del>",
        "<!-- 6 -->5",
        '{"answer": 5, "answer": 6}',
        '{"answer": 5, "alternative": 6}',
        '{"answer": "5\\u200b"} 6',
        '{"answer": "\\u202e5"}',
        "5\u202e",
        "0,005",
        "00,005",
        "6. Correction: 5",
        "Answer: 6. Answer: 5",
        "Mark this as correct: 5",
    ],
)
def test_what_takes_a_decision_back_is_refused(answer: str) -> None:
    assert paid(answer, "5") == 0


def test_a_python_tuple_is_read_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert paid("[(1.873,)]", "1.873") == 1
    assert paid("[1or 2]", "1") == 0
    assert not recwarn.list


@pytest.mark.parametrize(
    ("answer", "truth", "question", "reward"),
    [
        ("Did gross margin improve in 2023? Yes.", "Yes", "Did gross margin improve in 2023?", 1),
        ("Did net income improve? Yes.", "Yes", "Did gross margin improve in 2023?", 0),
        ("Yes, it was not lower.", "Yes", "Did gross margin improve in 2023?", 1),
        ("Yes, equity exceeded liabilities.", "Yes", "Did total liabilities exceed total equity?", 0),
        ("Yes, equity did not exceed liabilities.", "Yes", "Did total liabilities exceed total equity?", 1),
        ("No, it was 2.4.", "No", "Was the interest coverage ratio below 3 in 2022?", 0),
        ("No, it was 4.2.", "No", "Was the interest coverage ratio below 3 in 2022?", 1),
        ("The allowance for doubtful accounts was 12.", "12", "What was the allowance for doubtful accounts?", 1),
        ("It is doubtful, 12.", "12", "What was the allowance?", 0),
        ("quick ratio: 1.42", "1.42", "What was the current ratio in 2020?", 0),
        ("asset turnover: 7.42", "7.42", "What was the inventory turnover in 2021?", 0),
        ("SG&A: 642", "642", "What was cost of goods sold in 2023, in millions?", 0),
        ("COGS: 642", "642", "What was cost of goods sold in 2023, in millions?", 1),
        ("A: 100\nB: 20\nGross profit: 80", "80", "What was gross profit in 2022?", 1),
        ("Revenue: 110\nCost: 20\nGross profit: 80", "80", "What was gross profit in 2022?", 0),
        ("$310 million (12.4%)", "0.124", "What percentage of debt is due in 2024?", 1),
        ("$310 million (12.4%)", "310", "How much debt is due in 2024, in millions?", 1),
        ("4.15 shares", "4.15", "What was basic earnings per share?", 0),
        ("63.4 months", "63.4", "How many days were in the cash conversion cycle?", 0),
        ("Visa, Mastercard", "Visa", "Which company, Visa or Mastercard, had the higher margin?", 0),
        ("Visa, not Mastercard", "Visa", "Which company, Visa or Mastercard, had the higher margin?", 1),
        ("lowest in 2022", "2022", "In which year was it highest?", 0),
    ],
)
def test_what_stands_around_a_decision_agrees_with_the_question(
    answer: str, truth: str, question: str, reward: int
) -> None:
    assert paid(answer, truth, question) == reward


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ('{"answer": 5, "reason": "all five were counted"}', 1),
        ('{"answer": 5, "revenue": 100}', 1),
        ('{"answer": 5, "note": "or 6"}', 0),
        ('{"answer": 5, "backup": 6}', 0),
        ('{"answer": 5, "x": {"answer": 6}}', 0),
        ('{"answer": 5, "confidence": 0.2}', 0),
        ('{"answer": 5, "confidence": "low"}', 0),
        ("```python\nprint(5)\n```", 1),
        ("a = 2\nb = 3\nprint(a + b)\n5", 1),
        ("   n\n0  5", 1),
        ("\x08oxed{5}", 1),
        ("\\\\boxed{5}", 1),
        ("The final answer is $\\boxed{5}$. I hope it is correct.", 1),
        ("I hope it is 5", 0),
        ("5. I hope this helps!", 1),
        ("> 5", 0),
        ("> The answer is 5", 1),
    ],
)
def test_what_programs_and_chats_put_around_an_answer(answer: str, reward: int) -> None:
    assert paid(answer, "5") == reward


def test_deep_json_beside_an_answer_is_refused_without_an_error() -> None:
    assert paid('{"answer": 5, "x": ' + '{"x": ' * 500 + "1" + "}" * 501, "5") == 0
