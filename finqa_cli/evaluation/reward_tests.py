"""Rewards without a run: their specification, their own tests, and their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import ConfigError, EnvironmentFault
from finqa_cli.extend import registry
from finqa_cli.grading.answers import Case
from finqa_cli.masking import masked
from finqa_cli.runs.durable_files import now, storage, write_json
from finqa_cli.settings import ENVIRONMENT, Settings, to_public_dict
from finqa_cli.settings.recorded_versions import rewards_before_versions
from finqa_cli.types import Task
from finqa_cli.wiring.build import make_reward, make_verdict

DEFAULT = "weighted"
SPEC_FILE = "reward_spec.yaml"
TEST_FOLDER = "unit_tests"
TOTAL = "total"
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Result of one test: expected and actual parts, and the explanation; `error` if the reward itself failed."""

    name: str
    expected: Mapping[str, float]
    actual: Mapping[str, float]
    passed: bool
    explanation: str
    error: str = ""


def chosen(settings: Settings) -> Reward:
    """Returns the reward that the settings name.

    Raises:
        ConfigError: The reward or an option is unknown, or it is the verdict of an environment that needs an episode.
    """
    reward = make_verdict(settings)
    if reward is None:
        raise ConfigError(
            f"The verdict of the environment {settings.environment.name} cannot be used as a separate reward.",
            remedy="finqa rewards show",
        )
    return reward


def name_of(settings: Settings, name: str | None) -> str:
    """Returns the name of the reward: that of the argument, else of the settings, else the default."""
    return name or (settings.reward.name if settings.reward.name != ENVIRONMENT else DEFAULT)


def specification(reward: Reward, settings: Settings) -> dict[str, Any]:
    """Returns the specification of a reward, or its options in the settings with defaults if it has none."""
    if (found := reward.spec()) is not None:
        return dict(found)
    component = registry().find("reward", settings.reward.name)
    config = registry().config(component, settings.reward.options)
    return config.model_dump(mode="json") if config is not None else {}


def reward_facts(settings: Settings) -> dict[str, Any]:
    """Returns the `reward` of a manifest: name, options, and the specification with the content of named files."""
    public: dict[str, Any] = to_public_dict(settings)["reward"]
    reward = make_reward(settings)
    return public if reward is None else {**public, "specification": masked(specification(reward, settings))}


def reward_digest(facts: Mapping[str, Any]) -> str:
    """Returns the sha256 of `reward_facts` in hex, which must not change when a run is resumed."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def digests_before_versions(facts: Mapping[str, Any]) -> list[str]:
    """Returns the digests of the same reward in runs that were recorded before `strict` had versions."""
    return [reward_digest(before) for before in rewards_before_versions(facts)]


def wants_json(reward: Reward, settings: Settings) -> bool:
    """Returns whether a reward reads answers from JSON replies."""
    return specification(reward, settings).get("format") == "json"


def as_yaml(specification: Mapping[str, Any]) -> str:
    """Returns the text of `reward_spec.yaml`."""
    return yaml.safe_dump(dict(specification), sort_keys=False, allow_unicode=True)


def write_specification(name: str, document: Mapping[str, Any], folder: Path, stats: Mapping[str, int]) -> list[Path]:
    """Writes `reward_spec.yaml` and `manifest.json`.

    Raises:
        StorageError: Writing failed.
    """
    spec, manifest = folder / SPEC_FILE, folder / "manifest.json"
    write_text(spec, as_yaml(document))
    facts = {"module": "rewards", "timestamp": now()}
    write_json(manifest, {**facts, "config": {"reward": name, **document}, "stats": dict(stats)})
    return [spec, manifest]


def run_cases(reward: Reward, name: str) -> list[CaseResult]:
    """Runs the tests of a reward.

    Raises:
        ConfigError: The reward has no tests.
    """
    cases = reward.cases()
    if not cases:
        raise ConfigError(f"Reward {name!r} has no tests.", remedy=f"finqa rewards score FILE {name}")
    return [_result(reward, case) for case in cases]


def write_results(reward: Reward, results: Sequence[CaseResult], name: str, folder: Path) -> Path:
    """Writes `unit_tests/test_results.json` and `unit_tests/test_cases.json`; returns the path of the former.

    Raises:
        StorageError: Writing failed.
    """
    path = folder / TEST_FOLDER / "test_results.json"
    passed = sum(result.passed for result in results)
    totals = {"reward": name, "passed": passed, "failed": len(results) - passed}
    write_json(folder / TEST_FOLDER / "test_cases.json", [asdict(case) for case in reward.cases()])
    write_json(path, {**totals, "results": [asdict(result) for result in results]})
    return path


def _result(reward: Reward, case: Case) -> CaseResult:
    request = RewardRequest(
        task=Task(id=case.name, prompt=case.question, split="test", cluster="tests"),
        solution=case.solution,
        truth=case.truth,
        program=case.program,
        table=case.table,
    )
    try:
        rewards = reward.score(request)
    except EnvironmentFault as error:
        return CaseResult(
            name=case.name, expected=case.expected, actual={}, passed=False, explanation="", error=error.message
        )
    actual = {**rewards.components, TOTAL: rewards.total}
    passed = all(abs(actual.get(part, float("nan")) - value) <= _EQUAL for part, value in case.expected.items())
    return CaseResult(
        name=case.name, expected=case.expected, actual=actual, passed=passed, explanation=rewards.explanation
    )


def write_text(path: Path, text: str) -> None:
    """Writes a text file so that a crash leaves the old or the new content.

    Raises:
        StorageError: Writing failed.
    """
    temporary = path.with_name(f".{path.name}.new")
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
