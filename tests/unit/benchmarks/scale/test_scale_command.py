"""`python -m benchmarks.scale`: the plan of a run with many sandboxes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.scale.__main__ import main

pytestmark = pytest.mark.usefixtures("empty_folder")


def document(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().err


SMALL = ["--sandboxes", "60", "--hours", "2", "--set", "sandbox.options.create_limit=30"]


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
    found = document(["--sandboxes", "20000", "--hours", "1", "--max-concurrent-play", "40"], capsys)
    assert found["limit"] == "concurrency" and found["fill_s"] > 3600 and 3 < found["sandbox_hours"] / 3000 < 4


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
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
    got, errors = refusal(arguments, capsys)
    assert got == status and reason in " ".join(errors.split()), errors
