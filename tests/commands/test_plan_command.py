from __future__ import annotations

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_a_plan_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["plan", "-n", "290", "--attempt-correlation", "0.5", "--attempts", "8", "--difference", "0.03"]
    found = document(flags, capsys)
    assert found["smallest_difference"] == pytest.approx(0.0292, abs=1e-4) and found["attempts_needed"] == 8
    assert found["by_attempts"]["8"] == found["smallest_difference"] < found["by_attempts"]["1"]
    assert found["assumptions"]["company"]["origin"] == "one question per company"
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "a difference of 2.9 points is shown with 80 % power" in out and "(assumed)" in out and "(given)" in out


def test_companies_and_comparisons_make_it_harder(capsys: pytest.CaptureFixture[str]) -> None:
    plain = document(["plan", "-n", "300"], capsys)["smallest_difference"]
    clustered = document(["plan", "-n", "300", "--companies", "20"], capsys)["smallest_difference"]
    many = document(["plan", "-n", "300", "--companies", "20", "--comparisons", "10"], capsys)["smallest_difference"]
    assert plain < clustered < many


def test_claims_about_methods_need_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["plan", "-n", "290", "--companies", "30", "--difference", "0.08"]
    found = document([*flags, "--run-deviation", "0.04"], capsys)
    assert found["by_seeds"]["1"] is None and found["by_seeds"]["3"] > found["by_seeds"]["5"] > 0.08
    assert found["assumptions"]["deviation"] == {"value": 0.04, "origin": "given"}
    closer = document([*flags, "--run-deviation", "0.02"], capsys)
    assert closer["seeds_needed"] < found["seeds_needed"]
    assert document(flags, capsys)["assumptions"]["deviation"] == {"value": 0.025, "origin": "assumed"}
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "Comparing two methods takes 5 seeds of each" in out and "one run is no evidence about methods" in out


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ([], 2, "A plan of an evaluation needs a number of questions"),
        (["-n", "1"], 2, "'--questions'"),
        (["-n", "4", "--companies", "10"], 2, "4 questions cannot be about 10 companies"),
        (["-n", "9", "--difference", "3"], 2, "not between 0 and 1"),
        (["-n", "9", "--difference", "nan"], 2, "not between 0 and 1"),
        (["-n", "9", "--level", "0.2"], 2, "a level of 0.2"),
        (["-n", "9", "--power", "1"], 2, "a power of 1.0"),
        (["-n", "9", "--accuracy", "0"], 65, "there is no variance between questions."),
        (["-n", "9", "--paired-correlation", "2"], 2, "'--paired-correlation'"),
        (["-n", "9", "--paired-correlation", "0.9", "--attempt-correlation", "0.2"], 2, "cannot be more similar"),
        (["-n", "9", "--run-deviation", "2"], 2, "'--run-deviation'"),
        (["--from", "nowhere"], 65, "not a run folder"),
        (["--from", "a", "--from", "a"], 2, "the same run"),
        (["--from", "a", "--from", "b", "--from", "c"], 2, "from one run or from two runs."),
    ],
)
def test_what_cannot_be_planned_is_refused(
    arguments: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, errors = failure(["plan", *arguments], capsys)
    assert got == status and reason in errors


def test_likeness_that_nobody_gave_follows_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(["plan", "-n", "90", "--attempt-correlation", "0.3"], capsys)
    assert found["assumptions"]["paired"] == {"value": 0.3, "origin": "as two attempts of one policy"}
    other = document(["plan", "-n", "90", "--paired-correlation", "0.9"], capsys)
    assert other["assumptions"]["repeated"] == {"value": 0.9, "origin": "as two policies"}
