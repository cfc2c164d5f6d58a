"""Reports name what their intervals are clustered by, as the environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.commands.train import training_text
from finqa_cli.evaluation.cluster_nouns import alike, cluster_noun, clustered_by, counted
from finqa_cli.training.rl.rl_run import TrainResult


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ("finqa", {}, "8 companies"),
        ("finqa-text", {}, "8 companies"),
        ("mbpp", {}, "8 questions"),
        ("code", {}, "8 questions"),
        ("forecast", {}, "8 tickers"),
        ("forecast", {"cluster": "date"}, "8 dates"),
        ("forecast", {"of": "another version"}, "8 clusters"),
        ("a plugin that is gone", {}, "8 clusters"),
    ],
)
def test_each_environment_says_what_its_clusters_are(environment: str, options: dict[str, Any], words: str) -> None:
    assert counted(8, cluster_noun(environment, options)) == words
    assert counted(1, "company") == "1 company"


def test_attempts_are_alike_where_questions_are_the_clusters() -> None:
    assert (alike("question"), alike("date")) == ("attempts at one question", "questions of one date")
    assert (clustered_by("date"), clustered_by("cluster")) == ("clustered by date", "clustered by groups of tasks")


@pytest.mark.parametrize(
    ("noun", "episodes", "words"),
    [
        ("company", 40, "(40 of 8 companies, never trained on)"),
        ("question", 24, "(8, 24 attempts, never trained on)"),
        ("question", 8, "(8, never trained on)"),
        ("", 40, "(40 of 8 clusters, never trained on)"),
    ],
)
def test_training_says_what_was_asked_of_records_without_numbers_of_questions(
    noun: str, episodes: int, words: str
) -> None:
    facts: dict[str, Any] = {
        **{"accuracy": 0.5, "accuracy_interval": [0.4, 0.6], "turns_mean": 1.0, "temperature": 0.0},
        **{"clusters": 8, "episodes": episodes, "quoted_years": None, "sql_error_rate": None},
        **({"clustered_by": noun} if noun else {}),
    }
    result = TrainResult(run=Path("r"), iterations=1, seconds=1.0, before=facts, after=facts)
    assert words in training_text(result)


@pytest.mark.parametrize(
    ("noun", "questions", "episodes", "words"),
    [
        ("company", 40, 40, "(40 of 8 companies, never trained on)"),
        ("company", 40, 80, "(40 of 8 companies, 80 attempts, never trained on)"),
        ("question", 8, 24, "(8, 24 attempts, never trained on)"),
    ],
)
def test_training_says_how_many_questions_were_asked(noun: str, questions: int, episodes: int, words: str) -> None:
    facts: dict[str, Any] = {
        **{"accuracy": 0.5, "accuracy_interval": [0.4, 0.6], "turns_mean": 1.0, "temperature": 0.0},
        **{"clusters": 8, "episodes": episodes, "questions": questions, "clustered_by": noun},
        **{"quoted_years": None, "sql_error_rate": None},
    }
    result = TrainResult(run=Path("r"), iterations=1, seconds=1.0, before=facts, after=facts)
    assert words in training_text(result)
