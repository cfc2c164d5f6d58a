"""Gives an engine a new policy version, also one that is away for a while."""

from __future__ import annotations

import asyncio
import time

import structlog

from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import UnreachableEngineError
from finqa_cli.record.run_folder import RunFolder
from finqa_cli.types import PolicyVersion
from finqa_cli.workflows.interrupts import Stopper

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


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
