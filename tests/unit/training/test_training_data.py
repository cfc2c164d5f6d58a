"""Questions whose prompts are too long are not trained on, where a limit is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.finqa_text_rows import prepared, write
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyEnvironment

from finqa_cli.errors import ConfigError, DataError
from finqa_cli.rollout.pool import Pool
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.training.training_data import training_tasks
from finqa_cli.types import DataInfo, PolicyVersion, Prompt
from finqa_cli.wiring.build import open_environment
from finqa_cli.wiring.stage import Stage


class WordCodec(ToyCodec):
    """A token for each word of the question."""

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(range(len(prompt.messages[-1].content.split())))


class Heard(NullReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def settings(limit: int | None, **data: Any) -> Settings:
    return Settings.model_validate(
        {"environment": {"name": "finqa-text"}, "data": {"path": "rows.jsonl", "max_prompt_tokens": limit, **data}}
    )


def parts(chosen: Settings, **changes: Any) -> Stage:
    fields: dict[str, Any] = {
        "environment": open_environment(chosen, NullReporter()),
        "pool": Pool(),
        "engine": ToyChatEngine(),
        "codec": WordCodec(),
        "policy": PolicyVersion(number=0, model=""),
        "data": DataInfo(name="rows", digest=""),
    }
    return Stage(**{**fields, **changes})


@pytest.fixture(autouse=True)
def rows(empty_folder: Path) -> None:
    words = [" ".join(["word"] * count) for count in (10, 30, 20)]
    texts = [prepared(number, input_text=text, split="train") for number, text in enumerate(words)]
    write(empty_folder / "rows.jsonl", *texts)


async def test_longer_prompts_are_left_out_and_counted() -> None:
    heard = Heard()
    every = await training_tasks(parts(settings(None)), settings(None), heard)
    assert len(every) == 3 and heard.lines == []
    kept = await training_tasks(parts(settings(20)), settings(20), heard)
    assert kept == [every[0], every[2]], "a prompt of exactly that length stays"
    assert heard.lines == [
        "1 of 3 training questions are left out: their prompts have more than 20 tokens (data.max_prompt_tokens)."
    ]
    with pytest.raises(DataError, match="3 of 3 training questions are left out: no prompt has 9 tokens") as raised:
        await training_tasks(parts(settings(9)), settings(9), heard)
    assert "the shortest has 10" in raised.value.message
    assert raised.value.remedy == "--set data.max_prompt_tokens=30"


async def test_prompts_of_environments_with_sandboxes_are_known_without_one() -> None:
    for name in ("code", "mbpp"):
        chosen = Settings.model_validate({"environment": {"name": name}, "data": {"max_prompt_tokens": 1000}})
        environment = open_environment(chosen, NullReporter())
        assert environment.sandbox_spec() is not None and environment.opening(environment.tasks("train")[0]) is not None
        heard = Heard()
        kept = await training_tasks(parts(chosen, environment=environment), chosen, heard)
        assert kept == list(environment.tasks("train")) and f"0 of {len(kept)} training questions" in heard.lines[0]
        shortest = min(len(environment.opening(task).messages[-1].content.split()) for task in kept)
        with pytest.raises(DataError, match=f"the shortest has {shortest}"):
            few = Settings.model_validate({"environment": {"name": name}, "data": {"max_prompt_tokens": 1}})
            await training_tasks(parts(few, environment=environment), few, NullReporter())


async def test_a_limit_that_could_not_be_heeded_is_refused() -> None:
    chosen = settings(20)
    with pytest.raises(ConfigError, match="but engine"):
        await training_tasks(parts(chosen, codec=None), chosen, NullReporter())
    with pytest.raises(ConfigError, match="each takes a sandbox"):
        await training_tasks(parts(chosen, environment=ToyEnvironment()), chosen, NullReporter())
    with pytest.raises(ValueError, match="max_prompt_tokens"):
        settings(0)
