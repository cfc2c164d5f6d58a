"""Targets that begin with a provider, and where keys may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import AuthenticationError
from finqa_cli.types.model_providers import PROVIDERS, split_target
from finqa_cli.wiring.provider_targets import provider_settings
from finqa_plugins.engines._http.config import ServerConfig, find_key
from finqa_plugins.engines._http.model_prices import listed_price


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_has_an_engine_that_takes_its_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from finqa_cli.extend import registry

    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    model = {"google": "gemini-2.5-pro", "deepseek": "deepseek-chat"}.get(name, "a/b")
    implied = provider_settings(f"{name}/{model}", {})
    assert implied is not None and implied["engine.options.model"] == model
    component = registry().find("engine", implied["engine.name"])
    options = {path.removeprefix("engine.options."): value for path, value in implied.items() if ".options." in path}
    known = registry().config_class(component)
    assert known is not None and known.model_validate(options).model == model  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "target", ["openai/gpt-oss-20b", "google/gemma-2-2b-it", "meta-llama/x", "openai", "openai/", "runs/x", "embedded"]
)
def test_names_of_the_hub_stay_names_of_the_hub(target: str) -> None:
    assert split_target(target) is None and provider_settings(target, {}) is None


def test_what_the_user_gives_is_not_implied() -> None:
    given_engine = provider_settings("vllm/m", {"engine.name": "transformers"})
    assert given_engine is None
    given_url = provider_settings("openai/gpt-4o", {"engine.options.base_url": "http://127.0.0.1:1/v1"})
    assert given_url is not None and "engine.options.base_url" not in given_url


@pytest.mark.parametrize("name", [name for name, each in PROVIDERS.items() if each.host and each.needs_key])
def test_a_key_goes_to_its_own_provider(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in PROVIDERS.values():
        monkeypatch.setenv(each.key_variable, f"key-of-{each.name}")
    provider = PROVIDERS[name]
    key = find_key(ServerConfig(base_url=provider.base_url))
    assert key is not None and key.get_secret_value() == f"key-of-{name}"
    assert find_key(ServerConfig(base_url="https://elsewhere.example/v1")) is None
    monkeypatch.delenv(provider.key_variable)
    with pytest.raises(AuthenticationError) as raised:
        find_key(ServerConfig(base_url=provider.base_url))
    assert raised.value.remedy == f"export {provider.key_variable}=..."


def test_dated_names_have_the_price_of_their_model() -> None:
    url = PROVIDERS["anthropic"].base_url
    price = listed_price(url, "claude-sonnet-4-5-20250929")
    assert price is not None and price == listed_price(url, "claude-sonnet-4-5") and price.cache_write == 3.75
    assert listed_price("http://127.0.0.1:8000/v1", "gpt-4o") is None and listed_price(url, "unknown") is None


@given(st.text(max_size=40))
def test_any_text_is_a_target_or_none(text: str) -> None:
    found = split_target(text)
    assert found is None or text == f"{found[0].name}/{found[1]}"
