"""`finqa config`, `finqa plugins`, and a stranger's plugin from installation to use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.plugin_entry_points import install

from finqa_cli.app import main
from finqa_cli.masking import MASK

pytestmark = pytest.mark.usefixtures("empty_folder")

ROOT = Path(__file__).parents[2]


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_config_shows_every_value_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("finqa.toml").write_text("[lora]\nalpha = 64\n")
    Path(".env").write_text("LORA_DROPOUT=0.1\n")
    monkeypatch.setenv("LORA_RANK", "8")
    shown = document(["config", "show", "--origin", "--engine", "scripted", "--set", "train.seed=3"], capsys)
    origins = shown["origins"]
    assert shown["settings"]["lora"] | {"target_modules": 0} == {
        "rank": 8,
        "alpha": 64,
        "dropout": 0.1,
        "target_modules": 0,
    }
    assert origins["lora.rank"] == "environment LORA_RANK" and origins["lora.dropout"] == ".env LORA_DROPOUT"
    assert origins["lora.alpha"] == "file finqa.toml:2" and origins["train.seed"] == "--set"
    assert origins["engine.name"] == "flag" and origins["sandbox.name"] == "auto"
    assert any("sandbox local" in reason for reason in shown["chosen"])


def test_config_as_text_masks_secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["config", "show", "--origin", "--set", "engine.options.api_key=sk-very-secret"]) == 78
    refused = capsys.readouterr()
    assert "export FINQA_ENGINE__OPTIONS__API_KEY=..." in refused.err
    assert "sk-very-secret" not in refused.out + refused.err
    monkeypatch.setenv("FINQA_ENGINE__OPTIONS__API_KEY", "sk-very-secret")
    assert main(["config", "show", "--origin"]) == 0
    captured = capsys.readouterr()
    (line,) = (line for line in captured.out.splitlines() if line.startswith("engine.options.api_key"))
    assert line.split() == ["engine.options.api_key", MASK, "environment", "FINQA_ENGINE__OPTIONS__API_KEY"]
    assert "sk-very-secret" not in captured.out + captured.err
    assert captured.err == ""
    (line,) = (line for line in captured.out.splitlines() if line.startswith("model.name"))
    assert " auto (" in line and line.endswith("CUDA device)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[train\n", "finqa.toml is not valid TOML"),
        ("[train]\ngroup_size = 'six'\n", "train.group_size = 'six' (file finqa.toml:2)"),
        ("[trainn]\n", "Did you mean 'train"),
    ],
)
def test_a_bad_settings_file_ends_every_command_with_78(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("finqa.toml").write_text(text)
    for command in (["config", "show"], ["snapshot", "list"], ["play"], ["train"]):
        assert main(command) == 78
        assert said in capsys.readouterr().err
    assert main(["config", "show", "--config", "absent.toml"]) == 78
    assert "absent.toml" in capsys.readouterr().err


def test_plugins_lists_what_is_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(["plugins"], capsys)
    names = {(part["kind"], part["name"]) for part in shown["components"]}
    assert {("optimizer", "grpo"), ("engine", "scripted"), ("engine", "transformers"), ("codec", "qwen3")} <= names
    assert {plugin["status"] for plugin in shown["plugins"]} == {"ok"}


def test_plugins_show_documents_options_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    (grpo,) = document(["plugins", "show", "grpo"], capsys)["components"]
    by_name = {option["name"]: option for option in grpo["options"]}
    assert by_name["kl_coef"]["default"] == 0.05 and by_name["clip_low"]["doc"]
    assert main(["plugins", "show", "grpo"]) == 0
    assert "--set optimizer.options.NAME=VALUE" in capsys.readouterr().out


def test_plugins_show_prints_a_flag_for_the_options_of_a_tracker_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "wandb"]) == 0
    (written,) = re.findall(r"options, as --set '(.+)':", capsys.readouterr().out)
    assignment = written.replace("NAME", "mode").replace("VALUE", "offline")
    trackers = document(["config", "show", "--set", assignment], capsys)["settings"]["trackers"]
    assert trackers == [{"name": "wandb", "options": {"mode": "offline"}}]


def test_every_component_that_is_ready_shows_documented_options(capsys: pytest.CaptureFixture[str]) -> None:
    for part in document(["plugins"], capsys)["components"]:
        shown = document(["plugins", "show", part["name"]], capsys)["components"]
        assert all(component["options"] is not None for component in shown if component["status"] == "ready"), part
        assert part["summary"], part


def test_an_unknown_plugin_says_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "gprp"]) == 78
    assert "Did you mean 'grpo'" in capsys.readouterr().err


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), str(ROOT / "plugins")])}
    command = [sys.executable, "-m", "finqa_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, cwd=site)


def test_a_strangers_plugin_from_installation_to_use(tmp_path: Path) -> None:
    modules = {
        "example": "plugin",
        "zz_unimportable": "cannot_import",
        "zz_misspelt": "misspelt_hook",
        "zz_repeated": "duplicate",
    }
    site = install(tmp_path, modules)

    listed = run(site, "plugins")
    assert listed.returncode == 0 and listed.stderr == ""
    lines = listed.stdout.splitlines()
    assert any(line.split()[:3] == ["optimizer", "leave-one-out", "ready"] for line in lines)
    broken = {line.split()[1]: line for line in lines if line.startswith("broken")}
    assert "a_package_that_nobody_has" in broken["zz_unimportable"]
    assert "register_componets" in broken["zz_misspelt"]
    (left_out,) = (line for line in lines if line.startswith("left out"))
    assert "of plugin zz_repeated" in left_out and "optimizer grpo: the name belongs to plugin 'optimizers'" in left_out

    shown = json.loads(run(site, "plugins", "show", "leave-one-out", "--json").stdout)
    assert shown["plugins"][0]["distribution"] == "finqa-example" and shown["plugins"][0]["version"] == "0.1.0"
    (option,) = shown["components"][0]["options"]
    assert (option["name"], option["default"], option["doc"]) == ("scale", 1.0, "Factor on every advantage.")

    reason = json.loads(run(site, "plugins", "show", "zz_misspelt", "--json").stdout)["plugins"][0]
    assert reason["status"] == "broken" and "register_componets" in reason["error"]
