"""How much is measured: shapes of models, tokens, budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a Qwen3, as its config.json names them."""

    name: str
    vocabulary: int = 151_936
    hidden: int
    layers: int
    heads: int
    key_value_heads: int = 8
    head_dim: int = 128
    feed_forward: int
    tied: bool = True
    context: int = 40_960


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What a run of the benchmark measures.

    Attributes:
        name: As `--shapes` takes it.
        models: Those that the learner is measured on.
        main: The one that the other parts are measured on.
        small: Where float32 or all weights are trained.
        tokens: Of a micro-batch.
        repeats: Timed updates, after one that is not timed.
        episode: Tokens of each episode where there are several; half of them are the prompt of its group.
        played: Episodes of the mismatch.
        batches: Rows that the engine decodes together.
        prompt: Tokens of a prompt of the engine.
        generated: Tokens of a completion.
        kernel_tokens: Of the longest segment in the check of the kernel.
        iterations: Of the training.
        judged: Times, memory and learning have bars; too little is measured otherwise.
    """

    name: str
    models: tuple[ModelShape, ...]
    main: ModelShape
    small: ModelShape
    tokens: int = 16_384
    repeats: int = 2
    episode: int = 2048
    played: int = 32
    batches: tuple[int, ...] = (1, 16, 128)
    prompt: int = 512
    generated: int = 128
    kernel_tokens: int = 4096
    iterations: int = 12
    judged: bool = True


QWEN3_0_6B = ModelShape(name="0.6b", hidden=1024, layers=28, heads=16, feed_forward=3072)
QWEN3_4B = ModelShape(name="4b", hidden=2560, layers=36, heads=32, feed_forward=9728)
QWEN3_14B = ModelShape(name="14b", hidden=5120, layers=40, heads=40, feed_forward=17_408, tied=False)
SMALLEST = ModelShape(
    name="tiny",
    vocabulary=512,
    hidden=64,
    layers=2,
    heads=4,
    key_value_heads=2,
    head_dim=16,
    feed_forward=128,
    tied=False,
)

FULL = Scale(name="full", models=(QWEN3_0_6B, QWEN3_4B, QWEN3_14B), main=QWEN3_4B, small=QWEN3_0_6B)
TINY = Scale(
    name="tiny",
    models=(SMALLEST,),
    main=SMALLEST,
    small=SMALLEST,
    tokens=512,
    repeats=1,
    episode=64,
    played=4,
    batches=(1, 4),
    prompt=24,
    generated=16,
    kernel_tokens=96,
    iterations=2,
    judged=False,
)
SCALES = {
    scale.name: scale
    for scale in (
        FULL,
        *(replace(FULL, name=shape.name, models=(shape,), main=shape) for shape in FULL.models),
        TINY,
    )
}
"""By what `--shapes` takes: all shapes, one of them, or what a CPU can do in seconds."""
