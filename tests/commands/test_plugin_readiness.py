"""What `finqa plugins` calls ready can be used here; otherwise it names what is missing and the command that helps."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.extend import Component, readiness, registry
from finqa_cli.types import Check

pytestmark = pytest.mark.usefixtures("empty_folder")

KEYS = (
    "DAYTONA_API_KEY",
    "CWSANDBOX_API_KEY",
    "AVIATO_API_KEY",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "WANDB_ENTITY_NAME",
)


@pytest.fixture(autouse=True)
def _nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Status and remedy by kind and name."""
    assert main(["plugins", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["components"]
    assert all(part["ready"] is part["status"].startswith("ready") for part in parts)
    return {f"{part['kind']} {part['name']}": (part["status"], part["remedy"]) for part in parts}


@pytest.mark.parametrize(
    ("module", "component", "variables", "missing"),
    [
        ("daytona", "sandbox daytona", {"DAYTONA_API_KEY": "k"}, "needs DAYTONA_API_KEY"),
        ("cwsandbox", "sandbox cwsandbox", {"CWSANDBOX_API_KEY": "k"}, "needs CWSANDBOX_API_KEY"),
        ("cwsandbox", "sandbox aviato", {"AVIATO_API_KEY": "k"}, "needs AVIATO_API_KEY"),
        ("cwsandbox", "sandbox aviato", {"WANDB_API_KEY": "k", "WANDB_ENTITY_NAME": "e"}, "needs AVIATO_API_KEY"),
        ("wandb", "tracker wandb", {"WANDB_MODE": "offline"}, "needs WANDB_API_KEY, a login or WANDB_MODE=offline"),
        ("wandb", "tracker wandb", {"WANDB_API_KEY": "k"}, "needs WANDB_API_KEY, a login or WANDB_MODE=offline"),
        ("httpx", "engine openai", {"OPENAI_API_KEY": "k"}, "needs OPENAI_API_KEY"),
    ],
)
def test_a_component_without_its_key_is_not_ready(
    module: str,
    component: str,
    variables: dict[str, str],
    missing: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(module)
    status, remedy = rows(capsys)[component]
    assert status == missing and remedy.startswith(("export ", "wandb login"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rows(capsys)[component] == ("ready", "")


def test_servers_by_url_need_neither_key_nor_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys)["engine vllm"] == ("not set up: finqa setup vllm", "finqa setup vllm")
    Path("finqa.toml").write_text('[engine]\nname = "vllm"\n[engine.options]\nurl = "http://127.0.0.1:8000"\n')
    found = rows(capsys)
    assert found["engine vllm"] == ("ready; by URL: http://127.0.0.1:8000/v1", "")
    assert found["engine openai"][0] == "needs OPENAI_API_KEY", "these are the options of another engine"
    Path("finqa.toml").write_text(
        '[engine]\nname = "openai"\n[engine.options]\nbase_url = "http://127.0.0.1:8000/v1"\n'
    )
    assert rows(capsys)["engine openai"] == ("ready", "")


def test_packages_and_programs_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "openenv") else find(name))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "bwrap" else f"/bin/{name}")
    found = rows(capsys)
    assert found["learner torch"] == ("needs torch", "pip install 'finqa[train]'")
    assert found["engine transformers"][0] == "needs torch"
    assert found["environment finqa"] == (
        "its server needs openenv, which is not installed",
        "pip install 'finqa[openenv]'",
    )
    assert found["sandbox local"] == (
        "ready; executing code (environments code, mbpp) needs bubblewrap",
        "sudo apt-get install bubblewrap",
    )


def test_wrong_settings_do_not_keep_it_from_answering(capsys: pytest.CaptureFixture[str]) -> None:
    Path("finqa.toml").write_text("[trainn]\n")
    assert rows(capsys)["optimizer grpo"][0] == "ready"


@pytest.mark.parametrize("target", ["no_such_module:readiness", f"{__name__}:no_such_function", f"{__name__}:raises"])
def test_a_plugin_whose_check_fails_takes_no_other_with_it(target: str) -> None:
    component = Component(kind="engine", name="far", target="x:Y", readiness=target)
    (found,) = readiness(registry(), component, {})
    assert found.status == "fail" and found.detail.startswith("its check failed: ")


def raises(settings: object) -> list[Check]:
    raise SystemExit(3)
