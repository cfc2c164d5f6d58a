"""What every sandbox provider must do. A plugin's own tests call these with its provider and a working spec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from finqa_cli.contracts import Sandbox, SandboxProvider, ServingSandbox
from finqa_cli.errors import SandboxError
from finqa_cli.types import SandboxSpec

ProviderFactory = Callable[[], SandboxProvider]
LABELS = {"finqa.run": "contract", "other": "label"}


async def check_life_of_a_box(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Start, list by label, health, stop twice."""
    provider = make()
    assert isinstance(provider, SandboxProvider)
    try:
        box = await provider.start(spec, LABELS)
        assert isinstance(box, Sandbox)
        if isinstance(box, ServingSandbox):
            assert box.url().startswith(("http://", "https://"))
        assert await box.healthy()
        (listed,) = await provider.list({"finqa.run": "contract"})
        assert (listed.id, listed.state, dict(listed.labels)) == (box.id, "started", LABELS)
        assert listed.created > 0
        assert not await provider.list({"finqa.run": "another"})
        await box.stop()
        await box.stop()
        assert not await box.healthy()
        assert not await provider.list(LABELS)
    finally:
        await provider.close()


async def check_boxes_are_told_apart(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Several boxes have different ids, and stopping one leaves the others."""
    provider = make()
    try:
        boxes = await asyncio.gather(*(provider.start(spec, {**LABELS, "n": str(n)}) for n in range(5)))
        assert len({box.id for box in boxes}) == 5
        await boxes[0].stop()
        assert all(await asyncio.gather(*(box.healthy() for box in boxes[1:])))
        assert {info.id for info in await provider.list(LABELS)} == {box.id for box in boxes[1:]}
    finally:
        await provider.close()


async def check_close_ends_everything(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Close is thorough and idempotent; no box can be started afterwards."""
    provider = make()
    boxes = await asyncio.gather(*(provider.start(spec, LABELS) for _ in range(3)))
    await provider.close()
    await provider.close()
    assert not any(await asyncio.gather(*(box.healthy() for box in boxes)))
    another = make()
    assert not await another.list(LABELS)
    await another.close()
    for box in boxes:
        await box.stop()
    with pytest.raises(SandboxError):
        await provider.start(spec, LABELS)


async def check_boxes_are_reaped_from_elsewhere(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Another provider object lists and ends a box by its id; twice is fine, and so is an unknown id."""
    owner, other = make(), make()
    try:
        box = await owner.start(spec, LABELS)
        assert [info.id for info in await other.list(LABELS)] == [box.id]
        await other.reap(box.id)
        assert not await box.healthy()
        assert not await other.list(LABELS)
        await other.reap(box.id)
        await other.reap("unknown")
        await box.stop()
    finally:
        await owner.close()
        await other.close()


async def check_a_failed_start_leaves_nothing(make: ProviderFactory, broken: SandboxSpec) -> None:
    """A box that does not become ready is a SandboxError, and is gone."""
    provider = make()
    try:
        with pytest.raises(SandboxError):
            await provider.start(broken, LABELS)
        assert not await provider.list(LABELS)
    finally:
        await provider.close()


async def check_a_cancelled_start_leaves_nothing(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Whoever gives up waiting for a box leaves none behind."""
    provider = make()
    try:
        start = asyncio.create_task(provider.start(spec, LABELS))
        await asyncio.sleep(0)  # it has begun, and no real start is over within one turn of the loop
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not await provider.list(LABELS)
    finally:
        await provider.close()
