from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import ConfigError
from finqa_cli.masking import MASK, is_secret, masked
from finqa_cli.settings import from_public_dict, load_settings, to_public_dict

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_settings_survive_the_way_to_the_run_folder_and_back() -> None:
    settings = load_settings(flags={"run.dir": "runs/one", "trackers": ["console"], "lora.rank": 4}).settings
    public = json.loads(json.dumps(to_public_dict(settings)))
    assert to_public_dict(from_public_dict(public)) == public


def test_secrets_are_masked_and_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_SANDBOX__OPTIONS__API_KEY", "sk-1")
    settings = load_settings(assignments=["sandbox.options.token_ids=3", "sandbox.options.empty_token="]).settings
    assert settings.sandbox.options["api_key"] == "sk-1"
    public = to_public_dict(settings)
    assert public["sandbox"]["options"] == {"api_key": MASK, "token_ids": 3, "empty_token": ""}
    assert "api_key" not in from_public_dict(public).sandbox.options


def test_settings_of_another_version_are_refused_by_name() -> None:
    public = to_public_dict(load_settings().settings)
    public["train"]["a_setting_of_tomorrow"] = 1
    with pytest.raises(ConfigError, match=r"train\.a_setting_of_tomorrow"):
        from_public_dict(public)


def test_a_run_that_is_older_than_asynchronous_training_stays_synchronous() -> None:
    public = to_public_dict(load_settings(flags={"model.name": "some/model"}).settings)
    assert public["train"]["max_staleness"] == 1
    assert from_public_dict(public).train.max_staleness == 1
    for name in ("max_staleness", "off_policy", "off_policy_cap"):
        del public["train"][name]
    del public["generation"]["engine_replicas"]
    older = from_public_dict(public)
    assert (older.train.max_staleness, older.train.off_policy, older.generation.engine_replicas) == (0, "auto", 1)


def test_a_run_that_is_older_than_eval_seed_keeps_asking_what_it_asked() -> None:
    public = to_public_dict(load_settings(flags={"train.seed": 5}).settings)
    assert from_public_dict(public).eval.seed == 0
    del public["eval"]["seed"]
    assert from_public_dict(public).eval.seed == 5


@pytest.mark.parametrize("name", ["api_key", "DAYTONA_API_KEY", "apikey", "HF_TOKEN", "password", "client_secret"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["token_ids", "loss_tokens", "max_gen_tokens", "keyboard", "tokenizer", "secretary"])
def test_names_that_only_look_like_secrets(name: str) -> None:
    assert not is_secret(name)


@given(
    st.recursive(
        st.integers() | st.just("hunter2"),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "password"]), inner),
    )
)
def test_no_value_below_a_secret_name_survives(tree: Any) -> None:
    def below(value: Any, secret: bool) -> bool:
        if isinstance(value, dict):
            return any(below(item, key == "password") for key, item in value.items())
        if isinstance(value, list):
            return any(below(item, secret) for item in value)
        return secret and value == "hunter2"

    assert not below(masked(tree), False)
