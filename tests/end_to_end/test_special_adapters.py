"""`finqa eval ADAPTER` with adapters that engines do not serve: they are merged first, and play as the merged model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

import torch
from safetensors.torch import load_file

from finqa_cli.app import main
from finqa_cli.wiring.merged_adapters import merge_reason
from finqa_testing.contract.engine_play import make_adapter
from finqa_testing.tiny_models import make_tiny_qwen3

GAME = """
class Game:
    @staticmethod
    def tasks():
        return [f"{number}?" for number in range(40)]

    def reward(self, answer):
        return sum(map(ord, answer)) % 7 / 7
"""
PLAY = ("--environment=game.py", "--limit=4", "--max-gen-tokens=12", "--max-steps=1", "--quiet")
KINDS: dict[str, dict[str, Any]] = {
    "use_dora": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "rank_pattern, alpha_pattern": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 32}},
    "bias": {"bias": "lora_only"},
    "base_model.model.model.embed_tokens.lora_embedding_A": {"target_modules": ["embed_tokens", "q_proj"]},
    "adapter_model.bin": {},
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    Path("game.py").write_text(GAME)
    return make_tiny_qwen3(tmp_path / "base")


def as_bin(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    torch.save(load_file(weights), adapter / "adapter_model.bin")
    weights.unlink()


def texts(run: str) -> dict[str, Any]:
    records = [json.loads(line) for line in (Path(run) / "trajectories.jsonl").read_text().splitlines()]
    return {record["task"]["id"]: [turn["text"] for turn in record["turns"]] for record in records}


@pytest.mark.parametrize(
    ("reason", "options"), KINDS.items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_adapter_plays_as_the_merged_model(
    base: Path, capsys: pytest.CaptureFixture[str], reason: str, options: dict[str, Any]
) -> None:
    adapter = make_adapter(base, Path("adapter"), seed=1, **options)
    if reason == "adapter_model.bin":
        as_bin(adapter)
    assert merge_reason(adapter).startswith(reason)
    assert main(["eval", str(adapter), *PLAY, "--run-dir=direct"]) == 0, capsys.readouterr().err
    assert main(["export", str(adapter), "--to=merged", "--out=merged"]) == 0
    assert main(["eval", "merged", *PLAY, "--run-dir=exported"]) == 0
    assert main(["eval", str(base), *PLAY, "--run-dir=plain"]) == 0
    assert texts("direct") == texts("exported") != texts("plain")
    assert not list(Path("direct").glob("merged-*")), "the merged model is deleted"


def test_a_plain_adapter_is_served_as_it_is(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = make_adapter(base, Path("adapter"), seed=1)
    assert merge_reason(adapter) == ""
    assert main(["eval", str(adapter), *PLAY[:-1], "--run-dir=direct"]) == 0
    assert "Merging" not in capsys.readouterr().out


def test_a_bin_file_with_code_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = make_adapter(base, Path("adapter"), seed=1)
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"weight": Callable}, adapter / "adapter_model.bin")
    assert main(["eval", str(adapter), *PLAY, "--run-dir=direct"]) == 78
    told = capsys.readouterr().err
    assert "adapter_model.bin cannot be read" in told and "copy the adapter again" in told
