"""The settings that come with the small policies of environments, and when they stay out."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.extend import registry
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import EMBEDDED, Loaded, load_settings
from finqa_cli.wiring.build import open_environment
from finqa_cli.wiring.policies import resolve

OWN = {part.name: part.policy for part in registry().components("environment") if part.policy}


@pytest.fixture(autouse=True)
def no_gpu(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: False)


def loaded(environment: str, *assignments: str, **flags: object) -> Loaded:
    given = {"environment.name": environment, **{name.replace("__", "."): value for name, value in flags.items()}}
    return load_settings(flags=given, assignments=assignments, modelless=["scripted"], policies=OWN)


@pytest.mark.parametrize("environment", OWN)
def test_an_environment_with_a_policy_of_its_own_plays_what_that_was_taught(environment: str) -> None:
    found = loaded(environment)
    name = f"profile {OWN[environment]}"
    assert found.settings.model.name == OWN[environment] and found.settings.environment.options
    assert found.origins["train.iterations"] == name
    assert {found.origins[path] for path in found.origins if path.startswith("environment.options.")} == {name}
    assert found.origins["train.group_size"] == f"profile {EMBEDDED}", "what all small policies share stays"
    assert Path(resolve(OWN[environment]).model, "config.json").is_file()
    assert open_environment(found.settings, NullReporter()).tasks("test")


@pytest.mark.parametrize("environment", OWN)
def test_the_name_of_the_policy_is_enough(environment: str) -> None:
    found = load_settings(flags={"model.name": OWN[environment]}, policies=OWN)
    assert found.settings == loaded(environment, model__name=OWN[environment]).settings
    assert found.settings.environment.name == environment


def test_what_a_user_sets_wins() -> None:
    found = loaded("code", "environment.options.family=seed", "train.iterations=3")
    assert found.settings.environment.options["family"] == "seed" and found.settings.train.iterations == 3
    assert found.origins["environment.options.family"] == "--set"


def test_other_embedded_problems_may_be_asked_of_a_small_policy() -> None:
    found = loaded("mbpp", "environment.options.family=embedded").settings
    assert found.model.name == "embedded-mbpp" and len(open_environment(found, NullReporter()).tasks("train")) == 22


def test_options_of_embedded_tasks_stay_out_beside_other_tasks_or_players(tmp_path: Path) -> None:
    assert not loaded("forecast", data__path=tmp_path / "rows.jsonl").settings.environment.options
    assert not loaded("forecast", engine__name="scripted").settings.environment.options
    assert not loaded("finqa", model__name="embedded-code").settings.environment.options
    assert not loaded("code", model__name="some/model").settings.environment.options
    assert loaded("forecast", model__name="some/model").origins["train.iterations"] == "default"


@pytest.mark.parametrize("model", [EMBEDDED, *OWN.values()])
def test_small_policies_imitate_at_a_rate_that_changes_them(model: str) -> None:
    found = load_settings(flags={"model.name": model}, policies=OWN)
    assert (found.settings.sft.learning_rate, found.settings.sft.warmup_share) == (1e-3, 0.05)
    assert found.origins["sft.learning_rate"] == f"profile {EMBEDDED}"
    Path("own.toml").write_text("[sft]\nlearning_rate = 2e-4\n")
    assert load_settings(flags={"model.name": model}, files=["own.toml"]).settings.sft.learning_rate == 2e-4
    assert load_settings(flags={"model.name": model, "sft.learning_rate": 5e-6}).settings.sft.learning_rate == 5e-6
