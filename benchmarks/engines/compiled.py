"""Would torch.compile pay? One decoding step of the embedded policy, eager and compiled.

Three forms of a step over 64 rows: `eager`, as the engine runs it; `dynamic`, the same compiled by inductor for
changing shapes; `static`, compiled for one shape as a CUDA graph would be, with every row as long as the longest may
become and the rest masked. Needs a C++ compiler. The engine has the form that takes least time for the decoding of a
default run, compilation included. The compiled forms are spared what a run would do to them: rows that leave, openings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.engines.contestants import embedded_model
from benchmarks.figures import Figure, at_most, note
from finqa_plugins.engines.transformers.kv_store import BatchCache
from finqa_plugins.engines.transformers.served_model import CausalModel, load_model

ROWS, FIRST, COLUMNS = 64, 96, 256
DEFAULT_RUN_STEPS = 24 * 5 * 160
"""At most: iterations, turns of the episodes that are decoded together, tokens of a turn."""

Step = Callable[[int], Tensor]
"""[ROWS, V] logits after column `FIRST + t` has been filled."""


class CompilableCache:
    """Keys and values in a tensor of their own for each layer, which inductor can write in place; a buffer for all of
    them, as the engine has, it would copy at each layer. The new column is a tensor, so that one graph serves all.
    """

    is_compileable = True

    def __init__(self, keys: list[Tensor], values: list[Tensor], column: Tensor, width: int) -> None:
        self.keys = keys
        self.values = values
        self.column = column
        self.width = width

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes one column; returns those up to `width`."""
        self.keys[layer_idx].index_copy_(2, self.column, keys)
        self.values[layer_idx].index_copy_(2, self.column, values)
        return self.keys[layer_idx][:, :, : self.width], self.values[layer_idx][:, :, : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Decides nothing: masks and positions are given."""
        return 0


class Forms:
    """The forms of a step on one model, each with a buffer of its own that holds the same keys and values."""

    def __init__(self) -> None:
        self._model: CausalModel = load_model(
            embedded_model(), device=torch.device("cpu"), dtype=torch.float32, fits=lambda config: None
        )
        self._ids = torch.randint(0, 600, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(0))

    def eager(self) -> Step:
        """As the engine does it."""
        buffer, valid = self._buffer(), torch.ones(ROWS, COLUMNS, dtype=torch.bool)

        def step(t: int) -> Tensor:
            length = FIRST + t
            cache = BatchCache(buffer, slice(0, ROWS), length)
            return self._model.forward(self._ids[:, t : t + 1], self._places(t), valid[:, : length + 1], cache, None)

        return step

    def dynamic(self) -> Step:
        """Compiled for any number of filled columns."""
        return self._compiled(lambda length: torch.zeros(ROWS, 1, 1, length + 1), dynamic=True)

    def static(self) -> Step:
        """Compiled for one shape."""
        columns = torch.arange(COLUMNS)

        def mask(length: int) -> Tensor:
            row = torch.zeros(COLUMNS).masked_fill_(columns > length, float("-inf"))
            return row.expand(ROWS, 1, 1, -1).contiguous()

        return self._compiled(mask, dynamic=False)

    def _compiled(self, mask_of: Callable[[int], Tensor], *, dynamic: bool) -> Step:
        keys, values = ([layer.clone() for layer in half] for half in self._buffer().unbind(1))

        @torch.compile(dynamic=dynamic)
        def forward(ids: Tensor, places: Tensor, mask: Tensor, column: Tensor) -> Tensor:
            cache = CompilableCache(keys, values, column, mask.shape[-1])
            output = self._model.module(
                input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True, attention_mask=mask
            )
            logits: Tensor = output.logits[:, -1]
            return logits

        def step(t: int) -> Tensor:
            mask = mask_of(FIRST + t)
            if dynamic:
                torch._dynamo.maybe_mark_dynamic(mask, 3)
            return forward(self._ids[:, t : t + 1].contiguous(), self._places(t), mask, torch.tensor([FIRST + t]))

        return step

    def _places(self, t: int) -> Tensor:
        return torch.full((ROWS, 1), FIRST + t)

    def _buffer(self) -> Tensor:
        shape = self._model.shape
        sizes = (shape.layers, 2, ROWS, shape.kv_heads, COLUMNS, shape.width)
        return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def compiled(*, steps: int) -> list[Figure]:
    """Seconds of a default run's decoding in each form. The engine is eager: no form may be a tenth faster."""
    torch.set_num_threads(1)
    forms = Forms()
    makers = {"eager": forms.eager, "dynamic": forms.dynamic, "static": forms.static}
    figures, totals, logits = [], {}, {}
    for name, make in makers.items():
        step = make()
        before = time.perf_counter()
        logits[name] = [step(t) for t in range(3)]
        began = time.perf_counter() - before
        each = statistics.median(_seconds(step, t) for t in range(3, 3 + steps))
        totals[name] = began + DEFAULT_RUN_STEPS * each
        detail = f"{each * 1000:.2f} ms a step after {began:.1f} s for the first three"
        figures.append(note(f"{name}: seconds of decoding in a default run", totals[name], detail))
    apart = max(
        float((a - b).abs().max()) for name in makers for a, b in zip(logits[name], logits["eager"], strict=True)
    )
    figures.append(at_most("largest difference of a logit", apart, 1e-3))
    best = min(totals["dynamic"], totals["static"])
    figures.append(at_most("eager, by the better compiled form", totals["eager"] / best, 1.1, timed=True))
    return figures


def _seconds(step: Step, t: int) -> float:
    begin = time.perf_counter()
    step(t)
    return time.perf_counter() - begin
