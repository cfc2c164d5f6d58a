"""Gives the engine the versions that the learner publishes, proves that it serves them, and reports what that took."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from finqa_cli.contracts import Learner, TokenEngine
from finqa_cli.errors import UnreachableEngineError
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.training.rl.probe import Probe
from finqa_cli.types import PolicyVersion

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0

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
    learner: Learner,
    load: Callable[[PolicyVersion], Awaitable[None]],
    probe: Probe,
    version: int,
    *,
    policies: Path,
    keep: int,
) -> Synced:
    """Publishes the learner's weights as a version, has the engine load it and proves that it serves it.

    Args:
        learner: Whose weights they are.
        load: Has the engine load a version; it serves older ones meanwhile.
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
    await load(policy)
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


async def load_version(
    engine: TokenEngine, policy: PolicyVersion, wait_s: float, folder: RunFolder, stopper: Stopper
) -> None:
    """Loads a version; where the engine, or each of its replicas, cannot be reached, again until it can.

    Args:
        engine: Started.
        policy: The version.
        wait_s: Seconds after which the run ends.
        folder: Its events say when the wait begins (`engine_away`) and ends (`engine_back`).
        stopper: Ends the wait.

    Raises:
        EngineError: The version cannot be loaded.
        UnreachableEngineError: The engine stayed away.
        ServiceUnavailableError: It will not be back.
        InterruptedRun: A stop was requested during the wait.
    """
    began, pause = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            await engine.load(policy)
        except UnreachableEngineError as error:
            waited = time.monotonic() - began
            if waited + pause > wait_s:
                raise UnreachableEngineError(
                    f"Policy version {policy.number} cannot be loaded: for {waited:.0f} s the engine could not be "
                    f"reached (train.sync_wait_s is {wait_s:g}). {error.message}",
                    remedy=error.remedy,
                ) from error
            if pause == FIRST_PAUSE_S:
                log.warning("waiting for the engine", version=policy.number, reason=error.message)
                folder.event("engine_away", version=policy.number, reason=error.message)
        else:
            if pause > FIRST_PAUSE_S:
                folder.event("engine_back", version=policy.number)
            return
        stopper.check(f"finqa train --resume {folder.path}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def weight_bytes(folder: Path) -> int:
    """Size of the weight files of an adapter or a model. Other files name paths, so their size differs between runs."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))


def _remove_old(policies: Path, keep: int) -> None:
    for old in sorted(policies.glob("v*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
