from __future__ import annotations

import asyncio

from finqa_plugins.engines.vllm.readers_writer_lock import ReadersWriterLock


async def test_one_alone_waits_for_those_inside_and_lets_later_ones_wait() -> None:
    lock, story = ReadersWriterLock(), []

    async def passes(name: str, seconds: float) -> None:
        async with lock.shared():
            story.append(f"{name} in")
            await asyncio.sleep(seconds)
            story.append(f"{name} out")

    async def exclusive(name: str) -> None:
        async with lock.exclusive():
            assert lock.readers == 0
            story.append(f"{name} in")
            await asyncio.sleep(0.01)
            story.append(f"{name} out")

    async with asyncio.TaskGroup() as group:
        group.create_task(passes("early", 0.03))
        await asyncio.sleep(0)
        group.create_task(exclusive("first"))
        group.create_task(exclusive("second"))
        await asyncio.sleep(0.01)
        group.create_task(passes("late", 0))
    alone_in_order = ["first in", "first out", "second in", "second out"]
    assert story[:2] == ["early in", "early out"]
    assert [one for one in story if one in alone_in_order] == alone_in_order
    late, second = story.index("late in"), story.index("second in")
    assert late > story.index("first out")
    assert late < second or late > story.index("second out")


async def test_who_gives_up_leaves_the_lock_open() -> None:
    lock = ReadersWriterLock()
    async with lock.shared():
        waiting = asyncio.create_task(lock.exclusive().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1), lock.shared(), lock.shared():
        assert lock.readers == 2
