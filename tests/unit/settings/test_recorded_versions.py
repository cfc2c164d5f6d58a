"""Versions in records, of `strict` and of the codec `auto`: new ones name it, old ones mean the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.planned_evaluation import target_settings
from finqa_cli.evaluation.reward_tests import digests_before_versions, reward_digest, reward_facts
from finqa_cli.runs.run_folder import RunFolder, read_settings
from finqa_cli.settings import Settings, from_public_dict, load_settings, to_public_dict


def with_grader(grader: str) -> Settings:
    return Settings.model_validate({"environment": {"name": "finqa", "options": {"grader": grader}}})


def with_reward(**options: str) -> Settings:
    return Settings.model_validate({"reward": {"name": "graded", "options": options}})


@pytest.mark.parametrize(
    ("asked", "recorded"),
    [("strict", "strict-3"), ("strict-1", "strict-1"), ("strict-3", "strict-3"), ("openenv", "openenv")],
)
def test_a_record_names_the_version_and_keeps_it(asked: str, recorded: str) -> None:
    public = to_public_dict(with_grader(asked))
    assert public["environment"]["options"]["grader"] == recorded
    assert from_public_dict(public).environment.options["grader"] == recorded
    assert to_public_dict(with_reward(profile=asked))["reward"]["options"]["profile"] == recorded


def test_a_record_names_the_version_of_the_judge() -> None:
    public = to_public_dict(with_grader("judge"))
    assert public["environment"]["options"]["grader"] == "judge-1"
    assert from_public_dict(public).environment.options["grader"] == "judge-1"


@pytest.mark.parametrize(
    ("given", "followed"),
    [
        ({}, {"environment.options.grader", "grader.name", "grader.options.model"}),
        ({"environment.options.grader": "strict"}, set()),
        ({"data.snapshot": "other"}, set()),
        ({"grader.options.model": "another"}, {"environment.options.grader", "grader.name"}),
    ],
)
def test_an_evaluation_follows_the_judge_of_its_policy(
    given: dict[str, str], followed: set[str], tmp_path: Path
) -> None:
    settings = load_settings(flags={"environment.options.grader": "judge", "grader.options.model": "critic"}).settings
    run = tmp_path / "run"
    with RunFolder.create(run, command="train", settings=to_public_dict(settings), save_token_ids=False):
        pass
    implied = target_settings(given, str(run))
    assert {path for path in implied if "grader" in path} == followed


@pytest.mark.parametrize(
    "recorded",
    [
        {"environment": {"name": "finqa", "options": {"grader": "strict-2"}}},
        {"reward": {"name": "graded", "options": {"profile": "strict-2"}}},
    ],
)
def test_a_record_of_the_removed_version_says_what_to_do(recorded: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no such grading profile any more") as raised:
        from_public_dict(recorded)
    assert "finqa eval --rescore RUN --grader strict" in str(raised.value.remedy)


def test_a_bare_name_in_a_record_is_version_1() -> None:
    public = {"environment": {"name": "finqa", "options": {"grader": "strict"}}, "reward": {"name": "graded"}}
    assert from_public_dict(public).environment.options["grader"] == "strict-1"
    recorded = {"reward": {"name": "graded", "options": {}}}
    assert from_public_dict(recorded).reward.options["profile"] == "strict-1"


def test_other_options_of_that_name_are_left_alone() -> None:
    forecast = {"environment": {"name": "forecast", "options": {"profile": "strict"}}}
    assert from_public_dict(forecast).environment.options == {"profile": "strict"}
    assert to_public_dict(Settings.model_validate(forecast))["environment"]["options"] == {"profile": "strict"}
    own = {"reward": {"name": "function", "options": {"profile": "strict"}}}
    assert to_public_dict(Settings.model_validate(own))["reward"]["options"] == {"profile": "strict"}


def test_the_settings_of_an_old_run_are_read_as_version_1(tmp_path: Path) -> None:
    document = to_public_dict(with_grader("strict"))
    document["environment"]["options"]["grader"] = "strict"
    (tmp_path / "settings.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert read_settings(tmp_path)["environment"]["options"]["grader"] == "strict-1"


@pytest.mark.parametrize(
    ("environment", "options", "grader"),
    [
        ("finqa", {}, "openenv"),
        ("finqa", {"grader": "strict-3"}, "strict-3"),
        ("finqa", {"url": "http://127.0.0.1:1"}, None),
        ("finqa-text", {}, "strict-1"),
        ("convfinqa", {}, "strict-1"),
        ("code", {}, None),
    ],
)
def test_a_run_that_records_no_grader_had_the_default_of_then(
    environment: str, options: dict[str, str], grader: str | None, tmp_path: Path
) -> None:
    document = {**to_public_dict(Settings()), "environment": {"name": environment, "options": options}}
    (tmp_path / "settings.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert read_settings(tmp_path)["environment"]["options"].get("grader") == grader


@pytest.mark.parametrize("name", ["weighted", "ternary"])
def test_an_old_run_with_a_reward_of_a_specification_reads_answers_as_before(name: str, tmp_path: Path) -> None:
    recorded = {"reward": {"name": name, "options": {"format": "plain"}}}
    settings = from_public_dict(recorded)
    assert settings.reward.options == {"format": "plain", "profile": "strict-1"}
    facts = reward_facts(settings)
    specification = {key: value for key, value in facts["specification"].items() if key != "profile"}
    old = {**recorded["reward"], "specification": specification}
    assert reward_digest(old) in digests_before_versions(facts)
    fresh = Settings.model_validate(recorded)
    assert to_public_dict(fresh)["reward"]["options"]["profile"] == "strict-3"
    assert not digests_before_versions(reward_facts(fresh))
    file = tmp_path / "spec.yaml"
    file.write_text("profile: strict-1\n", encoding="utf-8")
    named = Settings.model_validate({"reward": {"name": name, "options": {"spec": str(file)}}})
    assert from_public_dict(to_public_dict(named)).reward.options == {"spec": str(file)}
    assert reward_facts(named)["specification"]["profile"] == "strict-1"


@pytest.mark.parametrize("options", [{}, {"profile": "strict"}])
def test_an_old_run_with_the_graded_reward_can_be_resumed(tmp_path: Path, options: dict[str, str]) -> None:
    old = {"name": "graded", "options": options, "specification": {"profile": "strict", "format": "plain"}}
    recorded = {"reward": {"name": "graded", "options": options}}
    facts = reward_facts(from_public_dict(recorded))
    assert facts["specification"]["profile"] == "strict-1"
    settings = to_public_dict(Settings())
    with RunFolder.create(tmp_path / "run", command="train", settings=settings, save_token_ids=False) as folder:
        folder.pin("reward digest", reward_digest(old))
        folder.pin("reward digest", reward_digest(facts), formerly=digests_before_versions(facts))
        newest = reward_facts(with_reward())
        with pytest.raises(ConfigError, match="was started with"):
            folder.pin("reward digest", reward_digest(newest), formerly=digests_before_versions(newest))
        folder.pin("reward digest", reward_digest(newest), fixed=False)
        folder.pin("reward digest", reward_digest(newest))
        folder.finish("finished")


def test_a_new_run_with_the_graded_reward_has_the_same_digest_when_it_is_resumed() -> None:
    settings = with_reward()
    again = from_public_dict(to_public_dict(settings))
    assert reward_digest(reward_facts(settings)) == reward_digest(reward_facts(again))


def test_a_record_names_the_version_of_the_codec_and_an_old_one_means_the_first() -> None:
    public = to_public_dict(Settings.model_validate({"codec": {"name": "auto", "options": {"history": "append"}}}))
    assert public["codec"]["options"] == {"version": 2, "history": "append"}
    assert from_public_dict(public).codec.options == {"version": 2, "history": "append"}
    assert from_public_dict({"codec": {"name": "auto", "options": {}}}).codec.options == {"version": 1}
    assert from_public_dict({"codec": {"name": "plain", "options": {}}}).codec.options == {}
