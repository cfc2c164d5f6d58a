"""Gives the engine the versions that the learner publishes, proves that it serves them, and reports what that took."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import Learner, TokenEngine
from finqa_cli.types import PolicyVersion
from finqa_cli.workflows.probe import Probe

WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """One sync.

    Attributes:
        policy: What the engine serves now.
        metrics: `sync_bytes` of weights that were written for the engine, and what the probe found.
        timing: `publish_s`, `load_s` and `probe_s`, which together are the sync.
    """

    policy: PolicyVersion
    metrics: Mapping[str, float]
    timing: Mapping[str, float]


async def sync_weights(
    learner: Learner, engine: TokenEngine, probe: Probe, version: int, *, policies: Path, keep: int
) -> Synced:
    """Publishes the learner's weights as a version, has the engine load it and proves that it serves it.

    Args:
        learner: Whose weights they are.
        engine: Serves older versions meanwhile.
        probe: Of engine and learner.
        version: Number of the new version.
        policies: Folder of the published versions.
        keep: How many versions stay on disk: episodes under way may still be served by older ones.

    Raises:
        StorageError: The disk is full or may not be written to.
        EngineError: The version cannot be loaded, or another one is served.
    """
    began = time.perf_counter()
    policy = await asyncio.to_thread(learner.publish, policies / f"v{version:05d}", version)
    published = time.perf_counter()
    await engine.load(policy)
    loaded = time.perf_counter()
    found = await probe.prove(policy)
    timing = {
        "publish_s": published - began,
        "load_s": loaded - published,
        "probe_s": time.perf_counter() - loaded,
    }
    size = weight_bytes(policy.adapter or Path(policy.model))
    await asyncio.to_thread(_remove_old, policies, keep)
    return Synced(policy=policy, metrics={"sync_bytes": size, **found}, timing=timing)


def weight_bytes(folder: Path) -> int:
    """Size of the weight files of an adapter or a model. Other files name paths, so their size differs between runs."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))


def _remove_old(policies: Path, keep: int) -> None:
    for old in sorted(policies.glob("v*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
