"""Secrets in settings are refused from every layer, without being shown, and each refusal names a way to give them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.app import main
from finqa_cli.errors import ConfigError
from finqa_cli.settings import load_settings
from finqa_cli.settings.secret_values import refuse_arguments, way_to_give

pytestmark = pytest.mark.usefixtures("empty_folder")

SECRET = "CANARY0123456789"
URL = f"http://me:{SECRET}@h/?token={SECRET}"


def by_toml(path: str, value: str) -> Any:
    section, _, key = path.rpartition(".")
    Path("finqa.toml").write_text(f'[{section}]\n{key} = "{value}"\n')
    return load_settings()


def by_json(path: str, value: str) -> Any:
    section, _, key = path.partition(".options.")
    Path("mine.json").write_text(f'{{"{section}": {{"options": {{"{key}": "{value}"}}}}}}')
    return load_settings(files=["mine.json"])


def by_yaml(path: str, value: str) -> Any:
    section, _, key = path.partition(".options.")
    Path("mine.yaml").write_text(f"{section}:\n  options:\n    {key}: {value!r}\n")
    return load_settings(files=["mine.yaml"])


def by_dotenv(path: str, value: str) -> Any:
    Path(".env").write_text(f"FINQA_{path.replace('.', '__').upper()}={value}\n")
    return load_settings()


def by_set(path: str, value: str) -> Any:
    return load_settings(assignments=[f"{path}={value}"])


@pytest.mark.parametrize("layer", [by_toml, by_json, by_yaml, by_dotenv, by_set])
@pytest.mark.parametrize("path", ["environment.options.url", "engine.options.server", "reward.options.source"])
def test_a_url_with_secrets_is_refused_from_every_layer(layer: Callable[[str, str], Any], path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} .*contains a URL with a user name") as refused:
        layer(path, URL)
    assert SECRET not in refused.value.message + refused.value.remedy and "export " in refused.value.remedy


def test_a_variable_of_the_environment_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_ENVIRONMENT__OPTIONS__URL", f"http://h/?token={SECRET}")
    with pytest.raises(ConfigError, match="environment FINQA_ENVIRONMENT__OPTIONS__URL") as refused:
        load_settings(assignments=["environment.options.url=http://other"])  # also one that a later layer replaces
    assert SECRET not in refused.value.message and "token_env=SERVER_TOKEN" in refused.value.remedy


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f'[engine.options]\ndefault_headers = \'{{"Authorization": "Token {SECRET}"}}\'', "a header that authorizes"),
        (f'[engine.options.extra_body]\nheaders = {{"X-Api-Key" = "{SECRET}"}}', "a secret called X-Api-Key"),
        (f'[environment.options.variables]\nAPI_TOKEN = "{SECRET}"', "a secret called API_TOKEN"),
        (f'trackers = [{{name = "wandb", options = {{api_key = "{SECRET}"}}}}]', "a secret called api_key"),
        (f'[model]\nname = "hf_{SECRET}"', "the key of a service"),
        (f'[engine.options]\napi_key_env = "{SECRET}-x"', "name of an environment variable"),
    ],
)
def test_other_forms_are_refused(text: str, what: str) -> None:
    Path("finqa.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=what) as refused:
        load_settings()
    assert SECRET not in refused.value.message + refused.value.remedy and refused.value.remedy


def test_an_option_that_is_a_secret_by_its_name_comes_from_anything_but_the_command_line() -> None:
    loaded = by_toml("engine.options.api_key", SECRET)
    assert loaded.settings.engine.options["api_key"] == SECRET
    with pytest.raises(ConfigError, match=r"engine.options.api_key \(--set\) is a secret") as refused:
        by_set("engine.options.api_key", SECRET)
    assert refused.value.remedy == "export FINQA_ENGINE__OPTIONS__API_KEY=..." and SECRET not in refused.value.message


@pytest.mark.parametrize(
    ("words", "place", "remedy"),
    [
        (["train", "--set", f"environment.options.url={URL}"], "--set environment.options.url", "token_env"),
        (["train", f"--set=engine.options.base_url={URL}"], "--set engine.options.base_url", "api_key_env"),
        (["train", f"--set=engine.options.api_key={SECRET}"], "engine.options.api_key is a secret", "FINQA_ENGINE__"),
        (["eval", "--model", f"https://{SECRET}@hub/x"], "--model", "HF_TOKEN"),
        (["data", "fetch", "rllm", f"--endpoint={URL}"], "--endpoint", "HF_TOKEN"),
        (["eval", URL], "An argument", "HF_TOKEN"),
    ],
)
def test_a_command_line_with_a_secret_is_refused_before_anything_runs(
    words: list[str], place: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 78
    captured = capsys.readouterr()
    assert place in captured.err and remedy in captured.err
    assert SECRET not in captured.out + captured.err and not list(Path().iterdir())


def test_ordinary_command_lines_pass() -> None:
    refuse_arguments(
        ["train", "--set", "engine.options.api_key_env=SERVER_KEY", "--model", "Qwen/Qwen3-0.6B", "--json"]
    )


def test_a_wrong_value_is_shown_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "train.iterations=many"]) == 78
    assert "train.iterations = 'many'" in capsys.readouterr().err
    Path("finqa.toml").write_text(f'[engine.options]\napi_key = ["{SECRET}"]\nbase_url = 5\n')
    assert main(["play", "--engine=openai", "--model=x"]) == 78
    assert SECRET not in capsys.readouterr().err


def test_every_section_has_a_way() -> None:
    for path in (
        "environment.options.url",
        "engine.options.x",
        "sandbox.options.x",
        "trackers",
        "model.name",
        "run.dir",
    ):
        assert "export " in way_to_give(path)
