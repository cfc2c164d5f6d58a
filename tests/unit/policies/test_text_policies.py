"""The policies that ship for single environments are small, and were taught by no task that is held out."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import finqa_cli.settings
from finqa_cli.contracts import EnvironmentContext
from finqa_cli.wiring.policies import resolve
from finqa_plugins.environments.code.config import CodeConfig, MbppConfig
from finqa_plugins.environments.code.function_environment import FunctionEnvironment
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_environment import FinQATextEnvironment
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_environment import ForecastEnvironment

RECIPE = Path(__file__).parents[3] / "recipes" / "text_policies.sh"
PROFILES = Path(finqa_cli.settings.__file__).parent / "profiles"


@pytest.mark.parametrize("name", ["embedded-code", "embedded-forecast", "embedded-mbpp", "embedded-text"])
def test_it_resolves_by_name_and_is_a_small_qwen3(name: str) -> None:
    folder = Path(resolve(name).model)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_500_000
    assert (folder / "model.safetensors").stat().st_size / 4 <= 1_000_000, "float32: four bytes a parameter"


def test_code_is_evaluated_on_functions_that_were_not_demonstrated() -> None:
    taught = code(options_in_recipe("functions"))
    played = code(options_in_profile("embedded-code"))
    shown = {task.prompt for task in taught.tasks("train")}
    for split in ("dev", "test"):
        assert played.tasks(split) and not shown & {task.prompt for task in played.tasks(split)}


def test_mbpp_is_evaluated_on_functions_that_were_not_demonstrated() -> None:
    options = options_in_recipe("problems")
    assert options == options_in_profile("embedded-mbpp"), "they are asked as they were taught"
    played = MbppEnvironment(MbppConfig(**options), EnvironmentContext(snapshot=None))
    shown = {task.prompt for task in played.tasks("train")}
    for split in ("dev", "test"):
        assert played.tasks(split) and not shown & {task.prompt for task in played.tasks(split)}


def test_forecasts_were_demonstrated_of_shares_that_the_embedded_data_does_not_have() -> None:
    taught = forecast(options_in_recipe("shares"))
    played = forecast(options_in_profile("embedded-forecast"))
    shown = {task.cluster for task in taught.tasks("train")}
    assert len(shown) > 300
    assert not shown & {task.cluster for split in played.splits() for task in played.tasks(split)}
    kinds = {task.kind for task in taught.tasks("train")}
    assert kinds >= {task.kind for task in played.tasks("test")}, "what it is asked is what it was taught"


def test_text_was_demonstrated_of_companies_that_the_embedded_data_does_not_have() -> None:
    taught = text(options_in_recipe("reports"))
    played = text(options_in_profile("embedded-text"))
    shown = {task.cluster for task in taught.tasks("train")}
    assert len(shown) > 300 and len(played.tasks("test")) > 200
    assert not shown & {task.cluster for split in ("dev", "test") for task in played.tasks(split)}
    kinds = {task.kind for task in taught.tasks("train")}
    assert kinds == {task.kind for task in played.tasks("test")}, "what it is asked is what it was taught"


def options_in_recipe(array: str) -> dict[str, Any]:
    """The environment's options that the script sets in one of its arrays."""
    found = re.search(rf"^{array}=\((.*?)\)$", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    pairs = (word.partition("=") for word in shlex.split(found[1]) if word.startswith("environment.options."))
    return {name.rpartition(".")[2]: parsed(text) for name, _, text in pairs}


def parsed(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def options_in_profile(name: str) -> dict[str, Any]:
    options: dict[str, Any] = tomllib.loads((PROFILES / f"{name}.toml").read_text())["environment"]["options"]
    return options


def code(options: Mapping[str, Any]) -> FunctionEnvironment:
    return FunctionEnvironment(CodeConfig(**options), EnvironmentContext(snapshot=None))


def forecast(options: Mapping[str, Any]) -> ForecastEnvironment:
    return ForecastEnvironment(ForecastConfig(**options), EnvironmentContext(snapshot=None))


def text(options: Mapping[str, Any]) -> FinQATextEnvironment:
    return FinQATextEnvironment(FinQATextConfig(**options), EnvironmentContext(snapshot=None))
