"""The naive form of an engine: every batch is one call that ends when its longest row does, as `generate` of a library.

No request is answered, and no row leaves the batch, before that; prompts are computed in full by the engine that is
given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from finqa_cli.contracts import TokenEngine
from finqa_cli.types import Completion, GenerateRequest


class NaiveForm:
    """Waits for every live episode, generates as many tokens for each as the longest wants, then answers all."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._live = 0
        self._waiting: list[tuple[GenerateRequest, asyncio.Future[Completion]]] = []
        self._batches: set[asyncio.Task[None]] = set()

    @contextmanager
    def seat(self) -> Iterator[None]:
        """One live episode."""
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            self._check()

    async def generate(self, request: GenerateRequest) -> Completion:
        """The completion, once the longest of its batch is done."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._check()
        return await answer

    def _check(self) -> None:
        if self._waiting and len(self._waiting) >= self._live:
            batch, self._waiting = self._waiting, []
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _run(self, batch: list[tuple[GenerateRequest, asyncio.Future[Completion]]]) -> None:
        longest = max(request.sampling.max_tokens for request, _ in batch)
        asked = (replace(request, sampling=replace(request.sampling, max_tokens=longest)) for request, _ in batch)
        completions = await asyncio.gather(*map(self._engine.generate, asked))
        for (request, answer), completion in zip(batch, completions, strict=True):
            wanted = request.sampling.max_tokens
            answer.set_result(
                replace(completion, token_ids=completion.token_ids[:wanted], logprobs=completion.logprobs[:wanted])
            )
