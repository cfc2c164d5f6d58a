"""Tokens a second, latency of turns, share of reused prompt tokens; the transformers engine against its naive form."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.engines.contestants import started
from benchmarks.engines.episodes import SLOW_TOOL_S, Result, play
from benchmarks.engines.naive import NaiveForm
from benchmarks.figures import Figure, at_least, note
from finqa_cli.contracts import TokenEngine

FORMS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {"threads": 1},
    "transformers, out of lockstep": {"threads": 1, "lockstep": False},
    "transformers without reuse": {"threads": 1, "kv_cache_gb": 0},
    "naive form": {"threads": 1, "kv_cache_gb": 0},
}
"""`naive form` is played through `NaiveForm`."""


async def transformers_speed(*, episodes: int, turns: int, repeats: int) -> list[Figure]:
    """The engine as it is by default on a CPU, as on a GPU, and naive: in turns, so that all meet the same machine."""
    runs: dict[str, list[Result]] = {name: [] for name in FORMS}
    shares: dict[str, float] = {}
    for _ in range(repeats):
        for name, options in FORMS.items():
            async with started("transformers", options) as engine:
                form = NaiveForm(engine) if name == "naive form" else engine
                await play(form, episodes=8, turns=1, seed=99)
                runs[name].append(await play(form, episodes=episodes, turns=turns))
                shares[name] = reused_share(engine, runs[name][-1])
    figures = [figure for name in runs for figure in facts(name, runs[name], shares[name])]
    figures += [
        _ratio(runs, "naive form", at_least),
        _ratio(runs, "transformers without reuse", lambda name, value, _, detail, **__: note(name, value, detail)),
    ]
    return [*figures, *await _with_slow_tools(episodes=episodes, turns=turns)]


def _ratio(runs: Mapping[str, list[Result]], peer: str, judge: Callable[..., Figure]) -> Figure:
    """Processor seconds: the tokens are the same, and what else the machine does is not in them."""
    ratios = [
        theirs.processor_seconds / ours.processor_seconds
        for ours, theirs in zip(runs["transformers"], runs[peer], strict=True)
    ]
    spread = f"median of {len(ratios)}, each within one repeat: {min(ratios):.2f} to {max(ratios):.2f}"
    label = f"transformers: tokens a processor second, by those of the {peer}"
    return judge(label, statistics.median(ratios), 3.0, spread, timed=True)


async def _with_slow_tools(*, episodes: int, turns: int) -> list[Figure]:
    """Cost of waiting for all episodes where equal bits do not need it."""
    figures = []
    for name in ("transformers", "transformers, out of lockstep"):
        async with started("transformers", FORMS[name]) as engine:
            run = await play(engine, episodes=episodes, turns=turns, tool_s=SLOW_TOOL_S)
            latency = f"turn latency p50 {run.latency_ms(50):.0f} ms, p95 {run.latency_ms(95):.0f} ms"
            label = f"{name}, tools of {SLOW_TOOL_S} s: tokens a second"
            figures.append(note(label, run.tokens_per_second, latency))
    return figures


async def vllm_speed(engine: TokenEngine, *, episodes: int, turns: int, repeats: int) -> list[Figure]:
    """A server that runs; its prefix cache knows nothing of a repeat's episodes."""
    await play(engine, episodes=8, turns=1, seed=99)
    runs = [await play(engine, episodes=episodes, turns=turns, seed=seed) for seed in range(repeats)]
    return facts("vllm", runs, reused_share(engine, runs[-1]))


def facts(name: str, runs: list[Result], reused: float) -> list[Figure]:
    """Of the repeat with the median speed."""
    run = sorted(runs, key=lambda result: result.tokens_per_second)[len(runs) // 2]
    size = f"{len(run.turn_seconds)} turns, {run.tokens} tokens in {run.seconds:.1f} s"
    if name != "vllm":  # whose processor seconds are another process's
        size += f", {run.processor_seconds:.1f} of the processor"
    return [
        note(f"{name}: tokens a second", run.tokens_per_second, size),
        note(f"{name}: turn latency p50 (ms)", run.latency_ms(50)),
        note(f"{name}: turn latency p95 (ms)", run.latency_ms(95)),
        note(f"{name}: prompt tokens reused (share)", reused),
    ]


def reused_share(engine: TokenEngine, result: Result) -> float:
    """Of the prompt tokens of a play, how many were not computed again: as the engine counts, or its server."""
    usages = [engine.usage(episode) for episode in {request.key.partition("#")[0] for request, _ in result.played}]
    if not any(usages):
        share: float = engine.reused_share  # type: ignore[attr-defined]  # of the transformers engine
        return share
    cached, prompts = (sum(int(usage[name]) for usage in usages) for name in ("cached_tokens", "prompt_tokens"))
    return cached / prompts
