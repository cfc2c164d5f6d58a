"""`ray:NAME` without Ray: what it is, what it needs, and what is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from fixtures.command_calls import document
from pydantic import ValidationError

from finqa_cli.contracts import EngineContext, LearnerContext
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend import registry
from finqa_cli.placement.placement_types import Placement
from finqa_cli.settings import Settings
from finqa_cli.settings.schema import ClusterSettings
from finqa_cli.wiring.placing import assumed_devices, find_plan

NO_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")


@pytest.mark.parametrize(("kind", "name"), [("engine", "transformers"), ("engine", "vllm"), ("learner", "torch")])
def test_a_component_on_nodes_has_the_options_of_the_one_that_it_runs(kind: str, name: str) -> None:
    inner, placed = registry().find(kind, name), registry().find(kind, f"ray:{name}")
    assert registry().config_class(placed) is registry().config_class(inner)
    assert (placed.requires, placed.extra, placed.elsewhere, placed.sleeps) == (("ray",), "ray", True, False)
    assert placed.venv is None, "the environment of vLLM is made on the nodes"


@NO_RAY
@pytest.mark.parametrize(
    ("kind", "name", "context"),
    [
        ("engine", "ray:transformers", EngineContext(model="m")),
        ("learner", "ray:torch", LearnerContext(model="m", learning_rate=1e-3)),
    ],
)
def test_without_ray_the_command_that_installs_it_is_named(kind: str, name: str, context: object) -> None:
    with pytest.raises(MissingDependencyError, match=f"{kind} '{name}' needs ray") as caught:
        registry().create(kind, name, {}, context)
    assert caught.value.remedy == "pip install 'finqa[ray]'"


@pytest.mark.parametrize("name", ["scripted", "openai", "human"])
def test_an_engine_that_runs_no_model_is_not_placed(name: str) -> None:
    with pytest.raises(ConfigError, match="runs no model") as caught:
        registry().find("engine", f"ray:{name}")
    assert caught.value.remedy == f"--engine {name}"


@pytest.mark.parametrize(("name", "kind"), [("ray:transformers", "engine"), ("ray:torch", "learner")])
def test_its_options_are_shown(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = document(["plugins", "show", name], capsys)["components"]
    assert (shown["kind"], shown["name"]) == (kind, name) and shown["options"]


def test_an_unknown_name_is_corrected() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'transformers'"):
        registry().find("engine", "ray:transfomers")


def test_options_are_checked_before_anything_is_placed() -> None:
    component = registry().find("engine", "ray:transformers")
    with pytest.raises(ConfigError, match="has no option 'lokstep'"):
        registry().config(component, {"lokstep": False})


def test_no_device_of_this_machine_is_planned_for_what_runs_on_nodes() -> None:
    settings = Settings.model_validate(
        {"engine": {"name": "ray:vllm"}, "learner": {"name": "ray:torch"}, "model": {"name": "Qwen/Qwen3-4B"}}
    )
    found = find_plan(settings, ("model.engine_devices", "model.learner_devices"), "train", assumed_devices("4x80"))
    assert isinstance(found, Placement)
    assert not (found.engine and found.engine.devices) and not (found.learner and found.learner.devices)


def test_finding_a_component_imports_nothing_of_ray() -> None:
    code = (
        "import sys; from finqa_cli.extend import registry; registry().find('engine', 'ray:vllm'); "
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.7:6379", "head.example:6379"])
def test_addresses(address: str) -> None:
    assert ClusterSettings(address=address).address == address


@pytest.mark.parametrize("address", ["", "head", "ray://head:10001", "10.0.0.7:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        ClusterSettings(address=address)
