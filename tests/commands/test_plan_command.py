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
    assert "Of two methods it takes 5 seeds of each" in out and "one run is no evidence about methods" in out


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


SMALL = ["plan", "--sandboxes", "60", "--hours", "2", "--set", "sandbox.options.create_limit=30"]


def test_a_plan_of_sandboxes_says_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = document([*SMALL, "--set", "run.sandbox_hour_price=0.1", "--group-size", "4"], capsys)
    assert 60 < found["fill_s"] < 70 and found["limit"] == "sandboxes" and found["not_built"] == []
    rate = found["when_full"]["episodes_per_s"]
    assert 0.98 < found["episodes"] / (2 * 3600 * rate) < 1 and found["groups"] == found["episodes"] // 4
    assert found["cost_usd"] == pytest.approx(0.1 * found["sandbox_hours"], abs=0.01)
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    assert "one process" in out and "no price is set" in out and "not built" not in out


def test_a_plan_of_what_is_not_built_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, "--workers", "2", "--accounts", "2"]
    assert document(flags, capsys)["not_built"] == ["several accounts in one run"]
    assert main(flags) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "This design cannot be run: it needs several accounts in one run, not built yet." in out


def test_a_process_that_is_full_names_what_it_carries(capsys: pytest.CaptureFixture[str]) -> None:
    found = document([*SMALL, "--turn-cpu-ms", "300"], capsys)
    assert found["limit"] == "process" and found["when_full"]["controller_share"] > 0.95
    assert found["changes"][0].startswith("--sandboxes ")
    assert found["changes"][1].startswith("--set cluster.rollout_workers=")


def test_nothing_is_asked_before_a_plan_of_very_many_sandboxes(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(["plan", "--sandboxes", "20000", "--hours", "1", "--max-concurrent-play", "40"], capsys)
    assert found["limit"] == "concurrency" and found["fill_s"] > 3600 and 3 < found["sandbox_hours"] / 3000 < 4


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--sandboxes", "500"], 2, "--sandboxes would have no effect on a plan of an evaluation"),
        (["--hours", "1", "-n", "9"], 2, "--questions would have no effect on a plan of sandboxes"),
        (["-n", "9", "--workers", "2"], 2, "--workers would have no effect on a plan of an evaluation"),
        (["--hours", "0"], 2, "0 hours are not between 0 and 8760"),
        (["--hours", "nan"], 2, "nan hours are not between 0 and 8760"),
        (["--hours", "1", "--sandboxes", "0"], 78, "pool.sandboxes"),
        (["--hours", "1", "--sandboxes", "3", "--workers", "4"], 2, "4 rollout workers cannot share 3 sandboxes"),
        (["--hours", "1", "--sandboxes", "3", "--accounts", "4"], 2, "4 accounts cannot share 3 sandboxes"),
        (["--hours", "1", "--fresh", "--sessions-per-sandbox", "2"], 2, "a fresh sandbox hosts one session, not 2"),
        (["--hours", "1", "--turns", "0.5"], 2, "0.5 turns are not between 1 and 1,000"),
        (["--hours", "1", "--reply-tokens", "0"], 2, "0 tokens of a reply are not between"),
        (["--hours", "1", "--step-ms", "0"], 2, "--step-ms is 0"),
        (["--hours", "1", "--turn-cpu-ms", "-1"], 2, "--turn-cpu-ms is -1"),
        (["--hours", "1", "--sandbox", "local"], 2, "'local' has no known limit of creates"),
        (["--hours", "1", "--set", "sandbox.options.create_limit=0"], 78, "create_limit"),
    ],
)
def test_sandboxes_that_cannot_be_planned_are_refused(
    arguments: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, errors = failure(["plan", *arguments], capsys)
    assert got == status and reason in " ".join(errors.split()), errors
