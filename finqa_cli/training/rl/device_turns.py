"""Turns of an engine and a learner that share a device: while one works, the weights of the other are not on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from finqa_cli.contracts import Learner, TokenEngine


@asynccontextmanager
async def turn_of_learner(engine: TokenEngine, learner: Learner) -> AsyncIterator[None]:
    """Give the device to the learner during this block, if the engine shares it; otherwise do nothing.

    If the block fails, the engine stays asleep: the run ends, and the learner may still use the device.
    """
    if not engine.sleeps:
        yield
        return
    await engine.sleep()
    await asyncio.to_thread(learner.wake)
    yield
    await give_to_engine(engine, learner)


async def give_to_engine(engine: TokenEngine, learner: Learner) -> None:
    """End a turn of the learner, or its start, before which the engine was put to sleep."""
    if engine.sleeps:
        await asyncio.to_thread(learner.sleep)
        await engine.wake()
