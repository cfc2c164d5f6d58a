"""What a sync leaves on disk and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.fake_engines import FakeEngine
from fixtures.run_contexts import make_context
from fixtures.toy_environment import ToyCodec, task

from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

from fixtures.tiny_learners import make_learner

from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.training.rl.probe import Probe
from finqa_cli.training.rl.weight_sync import Synced, sync_weights


async def test_a_sync_reports_bytes_and_seconds_and_keeps_the_newest_versions(tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model")
    engine = FakeEngine(seconds=0.0, load_s=0.01)
    found: dict[str, Synced] = {}
    with RunFolder.create(tmp_path / "run", command="train", settings={}, save_token_ids=False) as run:
        policies = run.path / "policies"
        context = make_context(run, Settings.model_validate({"train": {"max_staleness": 1}}))
        for version, (rank, dtype) in enumerate([(0, "float32"), (0, "bfloat16"), (4, "bfloat16")], start=1):
            learner = make_learner(model, {"publish_dtype": dtype}, lora_rank=rank)
            probe = Probe(context, engine, learner, ToyCodec(), [task()])
            synced = await sync_weights(context, learner, engine, probe, version)
            found["adapter" if rank else dtype] = synced
            (written,) = (policies / f"v{version:05d}").glob("*.safetensors")
            assert synced.metrics == {"sync_bytes": written.stat().st_size}
            assert set(synced.timing) == {"publish_s", "load_s", "probe_s"} and synced.timing["load_s"] >= 0.01
        assert sorted(path.name for path in policies.iterdir()) == ["v00002", "v00003"]
    assert engine.loaded == [1, 2, 3] and engine.policy == found["adapter"].policy
    size = {name: synced.metrics["sync_bytes"] for name, synced in found.items()}
    assert 0.5 <= size["bfloat16"] / size["float32"] < 0.55 and size["adapter"] < size["bfloat16"]
