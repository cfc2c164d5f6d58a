"""Original FinQA rows through the whole product: import, snapshot, play, eval, one training iteration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.app import main

DEV = Path(__file__).parents[3] / "shared" / "data" / "finqa" / "dev.json"

pytestmark = [
    pytest.mark.skipif(not DEV.is_file(), reason="original FinQA (dev.json) is not beside this checkout"),
    pytest.mark.usefixtures("empty_folder"),
]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    parsed: dict[str, object] = json.loads(capsys.readouterr().out)
    return parsed


def test_real_rows_can_be_played_evaluated_and_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    document(capsys, "data", "import", "finqa-json", str(DEV), "--out=data")
    document(capsys, "snapshot", "build", "--snapshot-name=original", "--data=data")
    episode = document(capsys, "play", "--engine=scripted", "--snapshot=original")
    assert episode["status"] == "completed"
    report = document(
        capsys, "eval", "scripted", "--snapshot=original", "--split=dev", "--run-dir=expert", "--limit=40"
    )
    assert report["episodes"] == 40 and report["faults"] == 0
    # the small policy reads no real question, so that nothing is learned; the episodes are real ones all the same
    code = main(
        [
            *("train", "--model=embedded", "--engine=transformers", "--sandbox=local", "--snapshot=original"),
            *("--split=dev", "--limit=4", "--iterations=1", "--sandboxes=4", "--group-size=2", "--max-steps=4"),
            *("--max-gen-tokens=60", "--max-rollout-rounds=1", "--run-dir=trained", "--no-preflight"),
        ]
    )
    assert code == 4 and "No group of 1 iterations was informative" in capsys.readouterr().err
    lines = [json.loads(line) for line in Path("trained/metrics.jsonl").read_text().splitlines()]
    (iteration,) = [line for line in lines if line["kind"] == "train"]
    assert iteration["episodes"] == 4 and iteration["faults"] == 0
