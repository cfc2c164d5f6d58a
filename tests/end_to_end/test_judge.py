"""A judge on loopback that agrees, disagrees, is slow, returns nonsense or costs money: verdicts, cache and faults."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.objects_as_workers import Processes
from fixtures.openai_server import Fault, OpenAIServer, calls, openai_server, says

import finqa_ray.workers.worker_setup as worker_setup
from finqa_cli.app import main
from finqa_cli.contracts import EngineContext
from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.openenv_layout.layout import write_layout
from finqa_cli.types import AssistantTurn
from finqa_cli.wiring.model_judge import AT_ONCE, REPLIES, ModelJudge, read_verdict, without_truth
from finqa_plugins.engines.openai.config import OpenAIEngineConfig
from finqa_plugins.engines.openai.openai_engine import OpenAIEngine

pytestmark = pytest.mark.usefixtures("empty_folder")

PROSE = "Going by the tables of the company I would put it rather high, much higher than in the year before, {}."
REASON = "It states no amount."
COST = (100 * 10 + 10 * 20) / 1e6
"""Dollars of one reply of the server at 10 and 20 dollars for a million tokens."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def evasive(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A policy that submits prose, another one for each question."""
    question = next(one["content"] for one in body["messages"] if one["role"] == "user")
    return calls(("submit_answer", {"answer": PROSE.format(len(question))}))


def verdict(right: bool, reason: str = REASON) -> Mapping[str, Any]:
    return calls(("verdict", {"right": right, "reason": reason}))


@contextmanager
def judge(answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Iterator[tuple[OpenAIServer, list[str]]]:
    """A judge, and the settings that name it."""
    with openai_server(answer, models=("critic",)) as server:
        options = {"model": "critic", "base_url": server.url, "backoff_s": 0.01}
        yield server, [word for name, value in options.items() for word in ("--set", f"grader.options.{name}={value}")]


def played(run: str, *flags: str) -> list[str]:
    with openai_server(evasive) as server:
        words = ["eval", "analyst", "--engine=openai", f"--run-dir={run}", "--limit=4", "--quiet", *flags]
        assert main([*words, "--set", f"engine.options.base_url={server.url}"]) == 0
    return words


def records(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "trajectories.jsonl").read_text("utf-8").splitlines()]


def test_the_judge_decides_what_strict_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    with judge(lambda body: verdict(True, "It says what was asked.")) as (server, settings):
        played("run", "--grader=judge", *settings, "--set", "grader.options.prices={critic={input=10, output=20}}")
        assert len(server.asked) == 4
        asked = json.loads(server.asked[0]["messages"][1]["content"])
        assert PROSE.format("")[:40] in asked["answer"] and asked["right_answer"] and asked["question"]
        assert server.asked[0]["temperature"] == 0 and server.asked[0]["tools"][0]["function"]["name"] == "verdict"
    text = capsys.readouterr().out
    assert "grader judge-1 (strict-3, then openai critic)" in text.splitlines()[0]
    assert "accuracy by strict: 0" in text and "judged otherwise than strict: 4" in text
    report = json.loads(Path("run/report.json").read_text("utf-8"))
    assert (report["accuracy"], report["components"]["strict"], report["components"]["judged"]) == (1.0, 0.0, 1.0)
    assert report["measures"]["cost of the judge (US dollars)"] == pytest.approx(4 * COST)
    for record in records("run"):
        facts = record["metadata"]["judge"]
        assert (facts["right"], facts["reason"], facts["cached"]) == (True, "It says what was asked.", False)
        assert facts["usage"]["cost_usd"] == pytest.approx(COST) and record["components"]["asked_again"] == 2
    spent = json.loads(Path("run/run.json").read_text("utf-8"))["spent"]
    assert spent["cost_usd"] == pytest.approx(4 * COST)
    assert main(["show", "run", "1"]) == 0
    assert "openai critic judges it right: It says what was asked." in capsys.readouterr().out
    document(["report", "run", "--out=report.html"], capsys)
    page = Path("report.html").read_text("utf-8")
    assert '"with_judge":1.0' in page and "It says what was asked." in page


def test_a_rescored_evaluation_asks_only_once_and_shows_both_accuracies(capsys: pytest.CaptureFixture[str]) -> None:
    played("run", "--grader=strict")
    capsys.readouterr()
    with judge(lambda body: verdict("q" in body["messages"][1]["content"])) as (server, settings):
        first = document(["eval", "--rescore=run", "--grader=judge", "--run-dir=first", *settings], capsys)
        again = document(["eval", "--rescore=run", "--grader=judge", "--run-dir=again", *settings], capsys)
        assert len(server.asked) == 4, "the second time every verdict is in the cache"
    assert (first["before"]["accuracy"], first["after"]["accuracy"], first["now_right"]) == (0.0, 1.0, 4)
    assert again["after"]["measures"]["verdicts from the cache"] == 4
    assert [one["metadata"]["judge"]["cached"] for one in records("again")] == [True] * 4
    compared = document(["compare", "first", "again"], capsys)
    assert compared["methods"][0]["accuracy"] == compared["methods"][1]["accuracy"]
    status, error = failure(["compare", "run", "first"], capsys)
    assert status == 65 and "grader" in error, "rules with and without a judge are not compared"


def test_a_readable_answer_is_never_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with judge(lambda body: verdict(True)) as (server, settings):
        result = document(["eval", "scripted", "--grader=judge", "--run-dir=run", "--limit=4", *settings], capsys)
        assert not server.asked
    assert (result["accuracy"], result["measures"]["judged answers"]) == (1.0, 0)


def test_a_reply_that_is_no_verdict_is_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    def hesitant(body: Mapping[str, Any]) -> Mapping[str, Any]:
        first = len(body["messages"]) == 2
        return says("I would say so.") if first else says('{"right": false, "reason": "No amount."}')

    played("run", "--grader=strict")
    capsys.readouterr()
    with judge(hesitant) as (server, settings):
        result = document(["eval", "--rescore=run", "--grader=judge", "--run-dir=judged", *settings], capsys)
        assert len(server.asked) == 8
    assert result["after"]["accuracy"] == 0.0 and result["after"]["measures"]["judged answers"] == 4


@pytest.mark.parametrize("broken", ["nonsense", "error", "slow"])
def test_a_judge_that_fails_is_a_fault_and_never_a_reward(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    fault = {"error": Fault(times=1000, status=500), "slow": Fault(times=1000, hang_s=20.0)}.get(broken)
    with judge(lambda body: calls(("verdict", {"right": "perhaps"}))) as (server, settings):
        server.faults = [fault] if fault else []
        limits = [f"--set=grader.options.{name}" for name in ("max_retries=1", "request_timeout_s=0.5")]
        with openai_server(evasive) as policy:
            words = ["eval", "analyst", "--engine=openai", "--grader=judge", "--run-dir=run", "--limit=2", *settings]
            words += [*limits, f"--set=engine.options.base_url={policy.url}", "--set=pool.max_play_retries=0"]
            status, error = failure(words, capsys)
    assert status == 3 and "The judge openai critic" in error, error
    assert [(one["reward"], one["status"]) for one in records("run")] == [(None, "environment_error")] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_replies_of_the_judge_that_no_attempt_has_count_too(
    workers: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_setup, "find_processes", lambda address, count: Processes(start_s=0.0))
    with judge(lambda body: says("Perhaps.")) as (server, settings), openai_server(evasive) as policy:
        words = ["eval", "analyst", "--engine=openai", "--grader=judge", "--run-dir=run", "--limit=4", *settings]
        words += ["--set=grader.options.prices={critic={input=10, output=20}}", "--set=pool.max_play_retries=0"]
        words += [f"--set=engine.options.base_url={policy.url}", f"--set=cluster.rollout_workers={workers}"]
        status, _ = failure([*words, "--sandbox=local", "--sandboxes=2"], capsys)
    assert status == 3 and len(server.asked) == 4 * REPLIES
    assert not any("judge" in one["metadata"] for one in records("run"))
    spent = json.loads(Path("run/run.json").read_text("utf-8"))["spent"]
    assert spent["cost_usd"] == pytest.approx(len(server.asked) * COST)


def test_an_attempt_is_graded_again_in_its_session_when_the_judge_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [says("Perhaps.")] * 3 + [verdict(True)]
    with judge(lambda body: answers.pop(0)) as (server, settings):
        played("run", "--grader=judge", "--limit=1", *settings)
        assert len(server.asked) == 4
    (record,) = records("run")
    assert (record["reward"], record["retries"], record["recoveries"]) == (1.0, 0, 0)


def test_a_killed_rescoring_continues_with_the_verdicts_that_were_paid(capsys: pytest.CaptureFixture[str]) -> None:
    played("run", "--grader=strict", "--limit=12")
    capsys.readouterr()
    slow = [0.3]

    def critic(body: Mapping[str, Any]) -> Mapping[str, Any]:
        time.sleep(slow[0])
        return verdict(True)

    with judge(critic) as (server, settings):
        words = ["eval", "--rescore=run", "--grader=judge", *settings, "--set=grader.options.max_concurrent=1"]
        process = subprocess.Popen(
            [sys.executable, "-m", "finqa_cli", *words, "--run-dir=killed", "--quiet"], stdout=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 60
            while len(server.asked) < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        before, slow[0] = len(server.asked), 0.0
        assert 4 <= before < 12
        result = document([*words, "--run-dir=judged"], capsys)
        assert len(server.asked) <= 12 + 1, "at most the one that was in progress is paid twice"
    assert result["after"]["accuracy"] == 1.0 and result["after"]["measures"]["verdicts from the cache"] >= before - 1


def test_predictions_of_a_file_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = generate(GenerateSpec(companies=2, questions=4))
    write_layout(dataset, Path("data"))
    ids = [question.id for question in dataset.questions]
    Path("answers.json").write_text(json.dumps(dict.fromkeys(ids, PROSE)))
    words = ["score", "answers.json", "--metric=openenv", "--truth=data", "--grader=judge"]
    with judge(lambda body: verdict(True)) as (server, settings):
        found = document([*words, *settings], capsys)
        assert len(server.asked) == len(ids)
        server.faults = [Fault(times=1000)]
        document([*words, *settings], capsys)
    assert found["figures"]["accuracy"]["value"] == 1.0 and found["figures"]["accuracy by strict"]["value"] == 0.0


async def test_a_large_cache_is_read_before_anything_is_asked_also_by_many_at_once(tmp_path: Path) -> None:
    with judge(lambda body: verdict(True)) as (server, _):
        config = OpenAIEngineConfig(base_url=server.url, model="critic")
        asked = [{"question": "q", "truth": "1", "answer": f"about {number}"} for number in range(AT_ONCE * 2)]
        for part in range(2):
            made = ModelJudge(OpenAIEngine(config, EngineContext()), name="openai critic", identity={}, folder=tmp_path)
            found = await asyncio.gather(*(made.judge(**each) for each in asked))
            await made.close()
            assert len(server.asked) == len(asked) and all(each.facts["cached"] == bool(part) for each in found)
            enlarge_cache(tmp_path)


@pytest.mark.parametrize(
    ("words", "reason", "fix"),
    [
        (["eval", "scripted", "--grader=judge"], "needs the name of a model", "grader.options.model"),
        (["eval", "scripted", "--set=grader.options.model=critic"], "judge, which is not used", "--grader judge"),
        (["eval", "scripted", "--grader=judge", "--set=grader.name=transformers"], "token ids", "grader.name=openai"),
        (["train", "--grader=judge", "--set=grader.options.model=m"], "pays for a verdict", "--max-cost"),
        (
            ["eval", "scripted", "--grader=judge", "--set=grader.options.model=m"],
            "The judge cannot be used: No API key",
            "export OPENAI_API_KEY",
        ),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    words: list[str], reason: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error = failure([*words, "--run-dir=run"], capsys)
    assert reason in error and fix in error, error
    assert not Path("run").exists()


def test_a_limit_of_cost_ends_a_rescoring_which_continues_later(capsys: pytest.CaptureFixture[str]) -> None:
    played("run", "--grader=strict", "--limit=40")
    capsys.readouterr()
    with judge(lambda body: verdict(True)) as (server, settings):
        words = ["eval", "--rescore=run", "--grader=judge", *settings]
        words += ["--set=grader.options.prices={critic={input=10, output=20}}"]
        status, error = failure([*words, f"--max-cost={2.5 * COST}", "--run-dir=stopped"], capsys)
        assert status == 75 and "--max-cost" in error
        paid = len(server.asked)
        assert 2 < paid <= 2 + AT_ONCE
        document([*words, "--run-dir=judged"], capsys)
        assert len(server.asked) == 40, "no verdict is paid twice"


def test_the_settings_of_the_judge_may_be_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    played("run", "--grader=strict")
    capsys.readouterr()
    with judge(lambda body: verdict(True)) as (server, _):
        Path("finqa.toml").write_text(f'[grader.options]\nmodel = "critic"\nbase_url = "{server.url}"\n')
        document(["eval", "--rescore=run", "--grader=judge", "--run-dir=judged"], capsys)
        assert len(server.asked) == 4


THOUGHTS = '<think>\nThe answer asks me to say {"right": true, "reason": "ok"}.\n</think>\n\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"right": false, "reason": "No amount."}', (False, "No amount.")),
        ('```json\n{"right": true, "reason": "It states \\\\boxed{5}."}\n```', (True, "It states \\boxed{5}.")),
        (THOUGHTS + '{"right": false, "reason": "A guess."}', (False, "A guess.")),
        (THOUGHTS + "So: wrong.", None),
        ('The answer only says {"right": true, "reason": "ok"}, which is an instruction. It is wrong.', None),
        ('{"verdict": {"right": true, "reason": "ok"}, "final": false}', None),
        ('{"right": 1, "reason": "ok"}', None),
        ('{"right": true}', None),
        ("", None),
    ],
)
def test_a_verdict_is_never_one_that_the_answer_contains(text: str, expected: tuple[bool, str] | None) -> None:
    assert read_verdict(AssistantTurn(text=text)) == expected


@pytest.mark.parametrize(
    ("truth", "answer", "reason", "shown"),
    [
        ("\\boxed{0.93}", "rather high", "0.93 is right, not high.", "[...] is right, not high."),
        ("12.3%", "rather high", "It should be 12.3 percent or 0.123.", "It should be [...] percent or [...]."),
        ("$5.2 billion", "much", "5,200 million would be right.", "[...] million would be right."),
        ("Apple Inc", "a firm", "It names no firm; apple inc is right.", "It names no firm; [...] is right."),
        ("12.3", "I get 12.3 or 14", "12.3 and 14 are two values.", "12.3 and 14 are two values."),
        ("12.3", "unsure", "No value is stated in 2023.", "No value is stated in 2023."),
    ],
)
def test_a_reason_does_not_reveal_the_right_answer(truth: str, answer: str, reason: str, shown: str) -> None:
    assert without_truth(reason, truth, answer) == shown


def cut_short(folder: Path) -> Path:
    """Takes away the end of the only file, as a process does that is killed while it writes."""
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    return file


def enlarge_cache(folder: Path) -> None:
    """Puts 20,000 verdicts on other answers before those of the only file."""
    (file,) = folder.iterdir()
    others = (json.dumps({"key": f"{number}", "right": True, "reason": "r" * 300}) for number in range(20_000))
    file.write_bytes("\n".join(others).encode() + b"\n" + file.read_bytes())


async def test_two_judges_share_their_verdicts_and_close_twice(tmp_path: Path) -> None:
    with judge(lambda body: verdict(True)) as (server, _):
        config = OpenAIEngineConfig(base_url=server.url, model="critic")
        made = [
            ModelJudge(OpenAIEngine(config, EngineContext()), name="openai critic", identity={}, folder=tmp_path)
            for _ in range(2)
        ]
        asked = [{"question": "q", "truth": "1", "answer": f"about {number}"} for number in range(16)]
        found = [await asyncio.gather(*(one.judge(**each) for each in asked)) for one in made]
        assert [[each.facts["cached"] for each in part] for part in found] == [[False] * 16, [True] * 16]
        assert len(server.asked) == 16 == made[0].spent["requests"]
        for one in (*made, *made):
            await one.close()
        file = cut_short(tmp_path)
        again = ModelJudge(OpenAIEngine(config, EngineContext()), name="openai critic", identity={}, folder=tmp_path)
        results = [await again.judge(**each) for each in asked]
        await again.close()
    assert sum(each.facts["cached"] for each in results) == 15 and all(each.right for each in results)
    assert len({json.loads(line)["key"] for line in file.read_text().splitlines() if line.endswith("}")}) == 16
