"""A head of 150 thousand tokens: what an update and the scoring of its samples ever hold of the logits."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import Figure, at_most, note
from benchmarks.learner.jobs import Job, ModelSize, Preparation, measure, prepare
from benchmarks.learner.shapes import Shape

VOCABULARY = 151_936
"""Of Qwen3."""
MODEL = ModelSize(vocabulary=VOCABULARY, hidden=64, layers=2, feed_forward=192)
CHUNK_MIB = 256
"""What the learner says that logits may take at once."""
FAR_BELOW = 0.35
"""Of one copy of the full logits; computing a loss on all of them at once takes three or more copies."""
BY_TOKENS = 1.15


def vocabulary(folder: Path, *, episodes: int, sampled: int, threads: int) -> list[Figure]:
    """The peak and the largest tensor for one micro-batch, and the peak for one of half the size."""
    shape = Shape(prompt=32, sampled=sampled, group=2, vocabulary=VOCABULARY)
    prepare(Preparation(folder=folder, model=MODEL, shape=Shape(prompt=32, sampled=32, group=2)), threads=threads)

    def run(count: int, *, watch: bool) -> Job:
        budget = count * (shape.prompt + sampled)
        return Job(start=folder, shape=shape, episodes=count, token_budget=budget, rows=count, watch=watch)

    half = measure(run(episodes // 2, watch=False), threads=threads, exact_memory=True)
    whole = measure(run(episodes, watch=False), threads=threads, exact_memory=True)
    watched = measure(run(episodes // 2, watch=True), threads=threads)
    tokens = episodes * sampled
    full_mib = tokens * VOCABULARY * 4 / 2**20
    return [
        at_most(
            "peak over start, share of the full logits",
            whole.grown_mib / full_mib,
            FAR_BELOW,
            f"{whole.grown_mib:.0f} of {full_mib:.0f} MiB; {tokens} sampled tokens in one micro-batch",
            timed=True,
        ),
        at_most(
            "memory at twice the tokens",
            whole.grown_mib / half.grown_mib,
            BY_TOKENS,
            f"{half.grown_mib:.0f} MiB at once",
            timed=True,
        ),
        at_most(
            "largest tensor, MiB",
            watched.largest * 4 / 2**20,
            CHUNK_MIB,
            f"of any operation of an update and of logprobs, {tokens // 2} sampled tokens",
        ),
        note("seconds", whole.seconds[0]),
    ]
