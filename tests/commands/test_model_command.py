"""`finqa model inspect`, and the settings files that ship with the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fixtures.plain_models import write_gpt2_tokenizer

from finqa_cli.app import main
from finqa_cli.settings import load_settings

pytestmark = pytest.mark.usefixtures("empty_folder")


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_is_described_and_its_settings_load(capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(["model", "inspect", "embedded", "--lora-rank", "8", "--out", "mine.toml"], capsys)
    model = shown["architecture"]
    assert (model["family"], model["layers"], model["tied"]) == ("qwen3", 4, True)
    assert shown["format"]["calls"] == "hermes" and shown["rank"] == 8
    trained = shown["memory"]["trained"]
    assert set(trained) == {"0", "8", "16", "32", "64"}
    assert trained["0"]["parameters"] == model["parameters"]
    assert trained["16"]["parameters"] == 2 * trained["8"]["parameters"]
    loaded = load_settings(files=["mine.toml", "grpo"])
    assert (loaded.settings.model.name, loaded.settings.lora.rank) == ("embedded", 8)
    assert loaded.settings.lora.target_modules == tuple(model["lora_targets"])

    assert main(["model", "inspect", "embedded"]) == 0
    text = capsys.readouterr().out
    assert f"{model['parameters']:,}" in text and "warning: input and output embedding" in text


def test_a_model_of_a_common_family_is_described_without_torch() -> None:
    run_it = "import sys; from finqa_cli.app import main; print(main(['model', 'inspect', 'embedded', '--json']))"
    loaded = "print([name for name in ('torch', 'peft', 'accelerate') if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{run_it}\n{loaded}"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("}\n0\n") and done.stderr == "[]\n"


def test_a_model_without_a_chat_template_plays_with_the_plain_codec(capsys: pytest.CaptureFixture[str]) -> None:
    config = _bare_model()
    shown = document(["model", "inspect", "bare"], capsys)
    assert shown["format"]["prompts"] == "roles as text"
    facts = json.loads(config.read_text())
    facts.pop("eos_token")
    config.write_text(json.dumps(facts))
    shown = document(["model", "inspect", "bare"], capsys)
    assert shown["format"] == {}
    assert any("no codec supports it," in warning and "no end token" in warning for warning in shown["warnings"])


def _bare_model() -> Path:
    """The embedded model in ./bare without its chat template; returns the tokenizer's configuration."""
    spec = find_spec("finqa_plugins.policies")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, "bare", ignore=shutil.ignore_patterns("*.py", "*.jinja", "*.safetensors"))
    config = Path("bare/tokenizer_config.json")
    facts = json.loads(config.read_text())
    facts.pop("chat_template", None)
    config.write_text(json.dumps(facts))
    return config


def test_gpt2_is_described_with_its_targets(capsys: pytest.CaptureFixture[str]) -> None:
    write_gpt2_tokenizer(Path("gpt2"))
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 384, "n_positions": 1024}
    Path("gpt2/config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    shown = document(["model", "inspect", "gpt2", "--lora-rank", "8", "--out", "mine.toml"], capsys)
    assert shown["targets"] == ["c_attn", "c_proj", "c_fc"] and shown["rank"] == 8
    assert shown["format"]["tools"] == "text in the system message"
    # c_attn 32 x 96, c_proj 32 x 32 and 128 x 32, c_fc 32 x 128, in each of two layers
    assert shown["memory"]["trained"]["8"]["parameters"] == 8 * 2 * (128 + 64 + 160 + 160)
    lora = load_settings(files=["mine.toml", "grpo"]).settings.lora
    assert (lora.rank, lora.target_modules) == (8, ("c_attn", "c_proj", "c_fc"))
    assert load_settings(files=["dialogpt-medium"]).settings.lora.target_modules == lora.target_modules


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["./absent"], 78, "no model, run or checkpoint"),
        (["embedded", "--gpu-memory", "nan"], 2, "--gpu-memory must be"),
        (["embedded", "--gpu-memory", "inf"], 2, "--gpu-memory must be"),
        (["embedded", "--lora-rank", "-1"], 2, "greater than or equal to 0"),
        (["embedded", "--out", "mine.yaml"], 2, "must end in .toml"),
        (["embedded", "--out", "absent/mine.toml"], 74, "Cannot write"),
        (["embedded", "--out", "there.toml"], 2, "already exists"),
        (["empty"], 78, "no config.json"),
    ],
)
def test_what_cannot_be_inspected_or_written_is_explained(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.toml").write_text("kept")
    Path("empty").mkdir()
    assert main(["model", "inspect", *arguments]) == status
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and not captured.out
    assert Path("there.toml").read_text() == "kept"


def test_what_ships_is_listed_and_taken_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {item["name"]: item for item in document(["config", "list"], capsys)["configs"]}
    assert listed["qwen3-14b"]["kind"] == "model" and listed["grpo"]["kind"] == "optimizer"
    assert listed["tiny"]["kind"] == "specification" and Path(listed["tiny"]["file"]).is_file()
    command = ["config", "show", "--origin", "--config", "qwen3-14b", "--config", "grpo", "--engine", "scripted"]
    shown = document(command, capsys)
    assert shown["settings"]["model"]["name"] == "Qwen/Qwen3-14B"
    assert shown["origins"]["train.group_size"].startswith("file optimizers/grpo.toml:")
    assert main(["config", "show", "--config", "qwen3-14b", "--config", "qwen3-8b"]) == 78
    assert "both belong to the model tier" in capsys.readouterr().err
