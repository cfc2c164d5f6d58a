"""Every architecture of transformers is evaluated and trained, or refused with a reason before anything is played."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

from fixtures.tiny_families import make_tiny
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from finqa_cli.app import main
from finqa_cli.wiring.policies import resolve

GAME = """
class Game:
    @staticmethod
    def tasks():
        return [f"{number}?" for number in range(40)]

    def reward(self, answer):
        return sum(map(ord, answer)) % 7 / 7
"""
PLAY = ("--environment=game.py", "--max-gen-tokens=6", "--max-steps=1")
TRAIN = ("--iterations=1", "--group-size=4", "--target-groups-per-iter=1", "--sandboxes=1", "--no-preflight")
OK, REFUSED = 0, 78
EXPECTED = {
    "llama": (OK, OK),
    "qwen2": (OK, OK),
    "qwen3": (OK, OK),
    "phi3": (OK, OK),
    "gemma3": (OK, OK),
    "gpt_oss": (OK, OK),
    "jamba": (REFUSED, REFUSED),
    "mamba": (REFUSED, REFUSED),
}
"""Family -> exit codes of `eval` and `train`; gemma3 is multimodal, gpt_oss has no fused attention."""

NOT_MADE = {
    "blt": "hash tables of a fixed size",
    "cohere_compass_text": "an encoder, whose masks need further options",
    "dbrx": "transformers cannot build its default configuration",
    **dict.fromkeys(("dots3_note", "dots3_note_text"), "sizes that depend on each other"),
    **dict.fromkeys(("falcon_h1", "zamba", "zamba2"), "sizes that depend on each other"),
    "gemma3n": "needs timm",
    "gemma3n_text": "layers that share keys and values by their number",
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts for another model, which it needs"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "transformers cannot build its default configuration"),
    "reformer": "axial positions of a fixed size",
}
"""Families for which shrinking the sizes of the default configuration gives no model."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    Path("game.py").write_text(GAME)
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def run(family: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Evaluate and train a tiny model; return both exit codes. Checks that a refusal says why and what can be done."""
    model = str(make_tiny(family, Path("model"), Path(resolve("embedded").model)))
    capsys.readouterr()
    codes = []
    for command in (("eval", model, "--limit=2", "--run-dir=e"), ("train", f"--model={model}", *TRAIN, "--run-dir=t")):
        codes.append(main([*command, *PLAY]))
        told = capsys.readouterr().err
        assert "Unexpected" not in told and "bug in finqa" not in told, told
        assert codes[-1] != REFUSED or ("error: " in told and "fix: " in told), told
    return codes[0], codes[1]


@pytest.mark.parametrize("family", EXPECTED)
def test_common_families_are_served_and_trained_or_refused(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(family, capsys) == EXPECTED[family]


@pytest.mark.thorough
@pytest.mark.parametrize("family", sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(EXPECTED)))
def test_every_family_ends_well_or_is_refused(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    if family in NOT_MADE:
        pytest.skip(NOT_MADE[family])
    assert set(run(family, capsys)) <= {OK, REFUSED}
