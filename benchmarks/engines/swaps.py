"""Adapters that are swapped while requests are in progress: how long that takes, and whose tokens come back.

Which version served a completion is not taken from its label: the learner, brought back to that version, must say the
same log-probabilities, and must say other ones at the neighbouring version, or the check would show nothing.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field, replace

from benchmarks.engines.episodes import VOCABULARY, Played
from benchmarks.engines.versions import Versions
from benchmarks.figures import Figure, at_least, exactly, note
from finqa_cli.contracts import TokenEngine
from finqa_cli.types import GenerateRequest, PolicyVersion, Sampling

TOLERANCE = 2e-4
"""Nats; beyond it is what another version says, not what another implementation in fp32 makes of the same."""


@dataclass(slots=True)
class Served:
    """One request across the swaps: the version that was loaded when it was asked, and what came back."""

    loaded: int
    pair: Played


@dataclass(slots=True)
class Swaps:
    """What happened."""

    served: list[Served] = field(default_factory=list)
    swap_ms: list[float] = field(default_factory=list)
    idle_ms: list[float] = field(default_factory=list)


async def swap(name: str, engine: TokenEngine, versions: Versions, *, requests: int, swaps: int) -> list[Figure]:
    """The figures of one engine, which serves the latest version."""
    serving = versions.latest
    played = [await _ask(engine, number, 24) for number in range(8)]
    published = [await asyncio.to_thread(versions.publish, played) for _ in range(swaps)]
    done = await _across(engine, serving, published, requests)
    return await asyncio.to_thread(_judge, name, done, versions)


async def _across(engine: TokenEngine, loaded: int, published: list[PolicyVersion], requests: int) -> Swaps:
    """Half of the requests of each version are in progress, or have just been asked, when the next one is loaded."""
    done, each = Swaps(), requests // len(published)

    async def served(number: int) -> None:
        at = loaded  # by now
        pair = await _ask(engine, number, random.Random(number).randint(8, 40))
        done.served.append(Served(at, pair))

    under_way: list[asyncio.Task[None]] = []
    for turn, policy in enumerate(published):
        first = turn * each
        under_way += [asyncio.create_task(served(first + number)) for number in range(each // 2)]
        await asyncio.sleep(0.01)
        begin = time.perf_counter()
        loading = asyncio.create_task(engine.load(policy))
        await asyncio.sleep(0)
        under_way += [asyncio.create_task(served(first + number)) for number in range(each // 2, each)]
        await loading
        done.swap_ms.append((time.perf_counter() - begin) * 1000)
        loaded = policy.number
        if turn % 2:
            await asyncio.gather(*under_way)
            under_way.clear()
    await asyncio.gather(*under_way)
    for policy in published:  # once more, under numbers that no completion has
        begin = time.perf_counter()
        await engine.load(replace(policy, number=policy.number + len(published)))
        done.idle_ms.append((time.perf_counter() - begin) * 1000)
    return done


async def _ask(engine: TokenEngine, number: int, tokens: int) -> Played:
    rng = random.Random(number)
    token_ids = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 60)))
    sampling = Sampling(max_tokens=tokens, seed=number)
    request = GenerateRequest(key=f"swap-{number:05}#0", token_ids=token_ids, sampling=sampling)
    return request, await engine.generate(request)


def _judge(name: str, done: Swaps, versions: Versions) -> list[Figure]:
    wrong, distinct, worst = 0, 0, 0.0
    for number in sorted({each.pair[1].policy_version for each in done.served}):
        pairs = [each.pair for each in done.served if each.pair[1].policy_version == number]
        right = versions.differences(number, pairs)
        other = versions.differences(number - 1 if number else 1, pairs)
        wrong += sum(difference > TOLERANCE for difference in right)
        distinct += sum(difference > TOLERANCE for difference in other)
        worst = max(worst, *right)
    early = sum(each.pair[1].policy_version < each.loaded for each in done.served)
    served = f"of {len(done.served)} requests across {len(done.swap_ms)} swaps; largest difference {worst:.1e}"
    return [
        note(f"{name}: adapter swap p50 (ms), requests under way", statistics.median(done.swap_ms)),
        note(f"{name}: adapter swap p50 (ms), nothing under way", statistics.median(done.idle_ms)),
        exactly(f"{name}: completions under a wrong version", wrong + early, 0, served),
        at_least(
            f"{name}: completions that tell their version from its neighbour (share)", distinct / len(done.served), 0.95
        ),
    ]
