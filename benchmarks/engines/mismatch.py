"""Do engine and learner say the same about a sampled token? In fp32, over multi-turn episodes, with an adapter."""

from __future__ import annotations

import asyncio

from benchmarks.engines.episodes import play
from benchmarks.engines.versions import Versions
from benchmarks.figures import Figure, at_most, note
from finqa_cli.contracts import TokenEngine

LIMIT = 1e-4


async def mismatch(name: str, engine: TokenEngine, versions: Versions, *, episodes: int, judged: bool) -> list[Figure]:
    """The largest difference of a token under a new version, which the engine loads; `judged`: it has a limit."""
    before = await play(engine, episodes=4, turns=1, seed=7)
    await engine.load(await asyncio.to_thread(versions.publish, before.played))
    result = await play(engine, episodes=episodes, turns=5, seed=8)
    worst = max(await asyncio.to_thread(versions.differences, versions.latest, result.played))
    label, detail = f"{name}: largest sampler-learner mismatch (nats)", f"over {result.tokens} tokens"
    return [at_most(label, worst, LIMIT, detail) if judged else note(label, worst, detail)]
