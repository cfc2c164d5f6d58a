from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.split_guard import find_overlap
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault
from finqa_cli.types import Message, Task
from finqa_plugins.environments.forecast import strict_forecasts
from finqa_plugins.environments.forecast.config import ForecastConfig, Inputs
from finqa_plugins.environments.forecast.forecast_environment import ForecastEnvironment
from finqa_plugins.environments.forecast.forecast_generate import generate
from finqa_plugins.environments.forecast.forecast_prompt import (
    ANSWER,
    CONFIDENCE,
    NO_NEWS,
    QUESTION_TYPES,
    PromptFacts,
    opening,
    reduced,
    render,
)
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow, load
from finqa_plugins.environments.forecast.make_rows import main
from finqa_plugins.rewards.answer_rewards import Weighted, WeightedConfig

EMBEDDED = generate(ForecastConfig())
ROWS = [row for rows in EMBEDDED.rows.values() for row in rows]


def environment(path: Path | None = None, **options: object) -> ForecastEnvironment:
    return ForecastEnvironment(ForecastConfig.model_validate(options), EnvironmentContext(snapshot=None, data=path))


def rows_of(**options: object) -> list[ForecastRow]:
    return [row for rows in generate(ForecastConfig.model_validate(options)).rows.values() for row in rows]


def test_embedded_tasks_follow_from_their_options_alone() -> None:
    assert generate(ForecastConfig()) == EMBEDDED and EMBEDDED.info.name == "embedded"
    assert generate(ForecastConfig(seed=1)).info.digest != EMBEDDED.info.digest
    more = {row.id: row for row in rows_of(companies=50, questions=7)}
    assert len(ROWS) == 240 and all(more[row.id] == row for row in ROWS)
    assert len({row.messages for row in ROWS}) == len({row.id for row in ROWS}) == 240


def test_embedded_splits_share_no_company_and_every_type_is_in_each() -> None:
    splits = environment()
    tasks = {split: splits.tasks(split) for split in splits.splits()}
    assert {split: len({task.cluster for task in part}) for split, part in tasks.items()} == {
        "train": 28,
        "dev": 6,
        "test": 6,
    }
    assert not find_overlap(tasks["train"], [*tasks["dev"], *tasks["test"]])
    for part in tasks.values():
        assert {task.kind for task in part} == set(QUESTION_TYPES)


def test_the_truth_is_the_signal_as_often_as_it_is_said_to_be() -> None:
    """Within four standard errors of 1,500 rows of each type."""
    for kind in QUESTION_TYPES:
        rows = rows_of(types=(kind,), companies=500, questions=3, noise=0.6)
        share = sum(row.truths[0] == row.extra["signal"] for row in rows) / len(rows)
        (known,) = {row.extra["signal_probability"] for row in rows}
        assert share == pytest.approx(known, abs=0.052)


def test_without_noise_the_signal_is_the_truth_and_can_be_read_from_the_prompt() -> None:
    for row in rows_of(noise=0.0, inputs="question_full"):
        text, truth = row.messages[-1].content, row.truths[0]
        prices = text.partition("Close prices: ")[2].partition("\n")[0].split(", ")
        rises, grows = float(prices[-1]) > float(prices[0]), "growth: +" in text
        wanted = {
            "event_detection": "yes" if rises else "no",
            "multi_signal_reasoning": ("scale in" if rises else "scale out") if rises == grows else "stay flat",
            "macro_fundamental": "up" if grows else "down",
        }
        assert truth == wanted.get(row.question_type, truth)
        assert row.extra["signal_probability"] == 1.0
        if row.question_type == "pure_forecast":
            assert truth.startswith("+" if rises else "-")
        if row.question_type == "analysis":
            assert truth.startswith("Up" if rises else "Down")


def test_other_answers_of_embedded_questions_are_wrong() -> None:
    truths: dict[str, Counter[str]] = {kind: Counter() for kind in QUESTION_TYPES}
    for row in rows_of(companies=100):
        truths[row.question_type][row.truths[0]] += 1
    for kind in set(QUESTION_TYPES) - {"pure_forecast"}:
        assert len(truths[kind]) in (2, 3) and min(truths[kind].values()) > 10
        assert [[strict_forecasts.score(answer, truth, kind) for answer in truths[kind]] for truth in truths[kind]] == [
            [float(answer == truth) for answer in truths[kind]] for truth in truths[kind]
        ]


def test_jitter_grows_with_uncertainty() -> None:
    def roughness(noise: float) -> float:
        total = 0.0
        for row in rows_of(noise=noise):
            text = row.messages[-1].content.partition("Close prices: ")[2].partition("\n")[0]
            closes = [float(close) for close in text.split(", ")]
            total += abs(closes[0] - 2 * closes[1] + closes[2])
        return total

    assert roughness(0.0) < roughness(0.5) < roughness(1.0) and roughness(0.0) == 0


FACTS = PromptFacts(
    company="ACME", macro="Rates: rising", fundamental="Growth: +2%", news=(), closes=(1.0, 2.5), question="Why?"
)
TEXT = render(FACTS)


def test_sections_stand_in_the_published_order() -> None:
    assert [line for line in TEXT.splitlines() if line.startswith("===")] == [
        "=== Company Information ===",
        "=== Macroeconomic Indicators ===",
        "=== Fundamental Data ===",
        "=== Recent News ===",
        "=== Historical Close Prices (2 days) ===",
        "=== Question ===",
    ]
    assert NO_NEWS in TEXT and "Close prices: 1.00, 2.50" in TEXT


@pytest.mark.parametrize(
    ("inputs", "kept"),
    [
        ("auto", {"Rates", "Growth", NO_NEWS, "2.50"}),
        ("question_full", {"Rates", "Growth", NO_NEWS, "2.50"}),
        ("question_only", set()),
        ("question_fundamental", {"Rates", "Growth"}),
        ("question_news", {"Rates", "Growth", NO_NEWS}),
    ],
)
def test_inputs_add_sections_as_the_published_preprocessing_does(inputs: Inputs, kept: set[str]) -> None:
    older = TEXT.replace("Recent News", "News").replace("Historical Close Prices", "Historical Price Data")
    for given in (f"Before.\n{TEXT}", f"Before.\n{older}"):
        text = reduced(given, inputs)
        assert {part for part in ("Rates", "Growth", NO_NEWS, "2.50") if part in text} == kept
        for part in ("Before.", "ACME", "=== Question ===\nWhy?"):
            assert part in text
        assert reduced(text, inputs) == text
    assert reduced("no sections", inputs) == "no sections"


def test_embedded_questions_show_what_their_type_needs_unless_told_otherwise() -> None:
    def shown(question_type: str, **options: object) -> set[str]:
        config = ForecastConfig.model_validate({"types": [question_type], **options})
        texts = [row.messages[-1].content for rows in generate(config).rows.values() for row in rows]
        parts = {"Interest rates", "Revenue growth", "Recent News", "Close prices"}
        return {part for part in parts if all(part in text for text in texts)}

    assert shown("event_detection") == {"Close prices"}
    assert shown("macro_fundamental") == {"Interest rates", "Revenue growth", "Close prices"}
    assert shown("news_sentiment") == {"Recent News", "Close prices"}
    assert shown("news_sentiment", inputs="question_news") == {"Interest rates", "Revenue growth", "Recent News"}


def test_a_prompt_asks_for_what_the_row_does_not_ask_for() -> None:
    def asked(*messages: tuple[str, str], **options: object) -> list[tuple[str, str]]:
        said = tuple(Message(role="system" if role == "system" else "user", content=text) for role, text in messages)
        row = ForecastRow(id="1", messages=said, question="?", truths=("yes",), question_type="")
        prompt = opening(row, ForecastConfig.model_validate(options))
        return [(message.role, message.content) for message in prompt.messages]

    user, tagged = ("user", "Why?"), ("user", "Why? In <answer> tags")
    assert asked(user) == [("system", ANSWER), user]
    assert asked(tagged) == [tagged]
    assert asked(tagged, reward="rlcr") == [("system", CONFIDENCE), tagged]
    assert asked(("system", "Be brief."), user, confidence=True) == [
        ("system", f"Be brief.\n{ANSWER}\n{CONFIDENCE}"),
        user,
    ]


async def test_careless_demonstrations_forget_the_tags() -> None:
    careless = environment(careless=0.5, companies=100)
    worth = Counter[float]()
    for task in careless.tasks("train"):
        session = await careless.open(task, seed=0, sandbox=None)
        turn = careless.demonstrate(session.prompt().messages)
        assert turn is not None and turn == careless.demonstrate(session.prompt().messages)
        await session.reply(turn.text)
        rewards = await session.grade()
        worth[rewards.total] += 1
        assert rewards.total == rewards.components["has_answer_tag"] == float("<answer>" in turn.text)
    assert set(worth) == {0.0, 1.0} and 0.4 < worth[1.0] / worth.total() < 0.6


async def test_a_task_of_another_data_set_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="no question 'x'"):
        await environment().open(Task(id="x", prompt="?", split="test", cluster="x"), seed=0, sandbox=None)


def _without_id(row: ForecastRow) -> ForecastRow:
    return replace(row, id="", extra={"signal": row.extra["signal"], "known": row.extra["signal_probability"]})


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_written_files_are_read_as_the_embedded_tasks(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "new"), "--format", ending, "--companies", "8"]
    assert main(arguments) == 0
    assert f"test.{ending}: 6 rows" in capsys.readouterr().out
    config = ForecastConfig(companies=8, inputs="question_full")
    written, generated = load(tmp_path / "new", config), generate(config)
    assert list(written.rows) == ["train", "dev", "test"]
    for split, rows in written.rows.items():
        assert [_without_id(row) for row in rows] == [_without_id(row) for row in generated.rows[split]]
    assert main(arguments) == 74 and "exists" in capsys.readouterr().err


def test_the_writer_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--noise", "2"]) == 2
    assert "--noise" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_file_to_evaluate_on_has_one_split(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--format", "jsonl", "--companies", "3"]) == 0
    only = environment(tmp_path / "test.jsonl")
    assert only.splits() == ("test",) and only.data().evaluation_only
    with pytest.raises(DataError, match="has no split 'dev'; it has: test"):
        only.tasks("dev")
    with pytest.raises(DataError, match="is for evaluation only"):
        only.tasks("train")


def test_clusters_of_files_are_tickers_or_dates(tmp_path: Path) -> None:
    record = {"prompt": "?", "reward_model": {"ground_truth": "yes"}, "extra_info": {"ticker": "ACME", "date": "May"}}
    (tmp_path / "test.jsonl").write_text(json.dumps(record))
    for cluster, name in (("ticker", "ACME"), ("date", "May")):
        (task,) = environment(tmp_path, cluster=cluster).tasks("test")
        assert task.cluster == name and task.prompt == "?" and task.kind == ""


def test_options_without_an_effect_are_refused(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--format", "jsonl", "--companies", "3"]) == 0
    for path, options in (
        (tmp_path, {"companies": 3}),
        (tmp_path, {"noise": 0.0}),
        (tmp_path, {"track_record": True}),
        (tmp_path, {"hindsight": False}),
        (tmp_path, {"confidence": True, "overconfident": 0.5}),
        (None, {"match": "4b"}),
        (None, {"skip_bad": True}),
    ):
        with pytest.raises(ConfigError, match="has no effect") as caught:
            environment(path, **options)
        assert list(options)[-1] in caught.value.remedy
    with pytest.raises(DataError, match="needs a folder"):
        environment(tmp_path / "test.jsonl", match="test")


@pytest.mark.parametrize("options", [{"reward": "rlcr"}, {"uncertainty": "reward"}])
def test_beside_a_configured_reward_options_of_our_own_are_refused(options: dict[str, Any]) -> None:
    context = EnvironmentContext(snapshot=None, reward=Weighted(WeightedConfig()))
    with pytest.raises(ConfigError, match="--reward replaces"):
        ForecastEnvironment(ForecastConfig.model_validate(options), context)
    assert ForecastEnvironment(None, context).splits()


def test_options_that_are_none_are_refused() -> None:
    for wrong in ({"profile": "lax"}, {"noise": 1.5}, {"types": ["poetry"]}, {"w_hi": 0}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            ForecastConfig.model_validate(wrong)


def test_a_track_record_tells_how_likely_the_signal_is() -> None:
    rows = rows_of(track_record=True, noise=(0.0, 0.5, 1.0), types=("news_sentiment", "event_detection"))
    plain = rows_of(noise=(0.0, 0.5, 1.0), types=("news_sentiment", "event_detection"))
    assert {row.uncertainty for row in rows} == {0.0, 0.5, 1.0}
    for row, other in zip(rows, plain, strict=True):
        line = f"\nTrack record: {row.extra['signal_probability']:.0%} of such signals came true"
        assert row.messages[-1].content.replace(line, "") == other.messages[-1].content != row.messages[-1].content
    assert {f"{row.extra['signal_probability']:.2f}" for row in rows} == {"1.00", "0.75", "0.67", "0.50", "0.33"}


def test_demonstrations_may_lack_hindsight_and_be_too_sure() -> None:
    options: dict[str, Any] = {"confidence": True, "noise": 0.5, "types": ["news_sentiment"], "companies": 100}
    shown = environment(**options, hindsight=False, overconfident=0.6)
    texts = []
    for row in rows_of(**options):
        turn = shown.demonstrate(opening(row, ForecastConfig.model_validate(options)).messages)
        assert turn is not None and f"<answer>{row.extra['signal']}</answer>" in turn.text
        texts.append(turn.text)
    sure, known = (sum(text.endswith(f"<confidence>{each}</confidence>") for text in texts) for each in ("1.0", "0.67"))
    assert sure + known == len(texts) and 0.5 < sure / len(texts) < 0.7
    with pytest.raises(ValidationError, match="overconfident has no effect"):
        environment(overconfident=0.6)
    with pytest.raises(ValidationError):
        environment(noise=())
