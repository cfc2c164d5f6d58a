"""Weight sync: the engine loads the versions that the learner publishes, and a probe checks that it serves them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import Learner, TokenEngine
from finqa_cli.deletion import try_delete
from finqa_cli.errors import UnreachableEngineError
from finqa_cli.training.rl.probe import Probe
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import PolicyVersion
from finqa_cli.types.run_events import RunEvent

log = structlog.get_logger(__name__)

BACKOFF = Backoff(first_s=0.5, longest_s=5.0)

WEIGHTS = ("*.safetensors", "*.bin")
"""Patterns of the files with weights in the folder of a version."""


class EngineAway(RunEvent):
    """New weights cannot be loaded, because no engine can be reached. The run waits for up to `train.sync_wait_s`."""

    event: Literal["engine_away"]
    version: int
    """Number of the policy."""
    reason: str
    """The error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Result of a weight sync.

    Attributes:
        policy: The version that the engine serves now.
        metrics: `sync_bytes`, the bytes of weights that were written for the engine, and the result of the probe.
        timing: `publish_s`, `load_s` and `probe_s`: seconds of the parts of the sync.
    """

    policy: PolicyVersion
    metrics: Mapping[str, float]
    timing: Mapping[str, float]


async def sync_weights(
    context: RunContext, learner: Learner, engine: TokenEngine, probe: Probe, version: int
) -> Synced:
    """Publish the learner's weights as a version, load it into the engine, and check that the engine serves it.

    The newest `train.max_staleness` + 1 versions stay on disk, because running episodes may still use older ones.

    Args:
        context: Common parts of the run.
        learner: Learner with the weights.
        engine: The engine, which serves older versions meanwhile.
        probe: Compares engine and learner.
        version: Number of the new version.

    Raises:
        StorageError: The disk is full or not writable.
        EngineError: The version cannot be loaded, or the engine serves another one.
        UnreachableEngineError, ServiceUnavailableError, InterruptedRun: See `load_version`.
    """
    policies, keep = context.folder.path / "policies", context.settings.train.max_staleness + 1
    began = time.perf_counter()
    policy = await asyncio.to_thread(learner.publish, policies / f"v{version:05d}", version)
    published = time.perf_counter()
    await load_version(context, engine, policy)
    loaded = time.perf_counter()
    found = await probe.prove(policy)
    timing = {
        "publish_s": published - began,
        "load_s": loaded - published,
        "probe_s": time.perf_counter() - loaded,
    }
    # Other files of the folder contain paths, so their size differs between runs.
    weights = policy.adapter or Path(policy.model)
    size = sum(path.stat().st_size for pattern in WEIGHTS for path in weights.glob(pattern))
    await asyncio.to_thread(_remove_old, policies, keep)
    return Synced(policy=policy, metrics={"sync_bytes": size, **found}, timing=timing)


async def load_version(context: RunContext, engine: TokenEngine, policy: PolicyVersion) -> None:
    """Load a version. If the engine, or every replica of it, cannot be reached, try again for some time.

    The events `engine_away` and `engine_back` record the begin and the end of the wait.

    Args:
        context: Common parts of the run; `train.sync_wait_s` limits the wait.
        engine: The engine, started.
        policy: The version.

    Raises:
        EngineError: The version cannot be loaded.
        UnreachableEngineError: The engine could not be reached for longer than the limit.
        ServiceUnavailableError: The engine is not available, and will not become reachable.
        InterruptedRun: A stop was requested during the wait.
    """
    wait_s, folder = context.settings.train.sync_wait_s, context.folder
    began, failures = time.monotonic(), 0
    while True:
        try:
            await engine.load(policy)
        except UnreachableEngineError as error:
            failures += 1
            waited, pause = time.monotonic() - began, BACKOFF.pause_s(failures)
            if waited + pause > wait_s:
                raise UnreachableEngineError(
                    f"Policy version {policy.number} cannot be loaded: for {waited:.0f} s the engine could not be "
                    f"reached (train.sync_wait_s is {wait_s:g}). {error.message}",
                    remedy=error.remedy,
                ) from error
            if failures == 1:
                # Log: With the event `engine_away`.
                log.warning("waiting for the engine", version=policy.number, reason=error.message)
                folder.event("engine_away", version=policy.number, reason=error.message)
        else:
            if failures:
                folder.event("engine_back", version=policy.number)
            return
        context.check_stop()
        await asyncio.sleep(pause)


def _remove_old(policies: Path, keep: int) -> None:
    for old in sorted(policies.glob("v*"))[:-keep]:
        try_delete(old, within=policies.parent)
