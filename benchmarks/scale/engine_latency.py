"""Latency of a simulated engine: continuous batching as processor sharing, on any clock.

Every active request gets one token per step, and a step takes longer the more requests are active. So all requests
share one count of steps: a request that needs w steps ends when the count has risen by w. A heap of the final counts
gives the next request that ends. The same model runs on the event loop's clock (benchmarks) and in virtual time
(`simulation`).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Request = TypeVar("Request", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Assumed latency, of the order of a 14B model in bfloat16 on two 80 GB GPUs without CUDA graphs.

    Attributes:
        prefill_steps: Cost of the prefill of the newest part of a prompt, in decode steps; the rest is cached.
        step_s: Seconds of a decode step with a single request.
        step_s_per_request: Seconds that each further request adds to a decode step.
        median_tokens: Median length of a turn; lengths are lognormal.
        sigma: Standard deviation of the logarithm of the length.
        max_tokens: Length at which a turn is cut.
    """

    prefill_steps: int = 6
    step_s: float = 0.02
    step_s_per_request: float = 0.00006
    median_tokens: float = 70.0
    sigma: float = 0.7
    max_tokens: int = 512

    def slower(self, factor: float) -> LatencyModel:
        """Return the same model with the duration of each step multiplied by `factor`."""
        return replace(self, step_s=factor * self.step_s, step_s_per_request=factor * self.step_s_per_request)

    def steps(self, seed: int, turn: int) -> int:
        """Decode steps of a turn: a function of the episode's seed and the number of the turn alone."""
        rng = random.Random(f"tokens:{seed}:{turn}")
        tokens = round(self.median_tokens * rng.lognormvariate(0.0, self.sigma))
        return self.prefill_steps + min(self.max_tokens, max(1, tokens))


class SharedDecoder(Generic[Request]):
    """The active requests of a simulated engine, and when each ends. Times are seconds of the caller's clock.

    Attributes:
        request_seconds: Seconds of service so far, summed over the requests.
    """

    def __init__(self, model: LatencyModel, now: float) -> None:
        self._model = model
        self._now = now
        self._count = 0.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Request]] = []
        self._active: set[Request] = set()
        self.request_seconds = 0.0

    def add(self, request: Request, steps: int, now: float) -> list[Request]:
        """Start to serve a request; return the requests that ended until now, as `advance` does.

        Args:
            request: The request.
            steps: Decode steps that it needs.
            now: Time in seconds.
        """
        finished = self.advance(now)
        self._active.add(request)
        heapq.heappush(self._queue, (self._count + steps, next(self._order), request))
        return finished

    def advance(self, now: float) -> list[Request]:
        """Serve until `now`; return the requests that ended meanwhile, in order."""
        finished: list[Request] = []
        while (due := self.due()) is not None and due <= now:
            count, _, request = heapq.heappop(self._queue)
            self._serve(due, count)
            self._active.remove(request)
            finished.append(request)
        if self._active:
            self._serve(now, self._count + (now - self._now) / self._step_s())
        self._now = max(self._now, now)
        return finished

    def due(self) -> float | None:
        """Time at which the next request ends; None when no request is active."""
        while self._queue and self._queue[0][2] not in self._active:
            heapq.heappop(self._queue)
        if not self._queue:
            return None
        return self._now + (self._queue[0][0] - self._count) * self._step_s()

    def cancel(self, request: Request, now: float) -> list[Request]:
        """Stop serving a request, if it is still active; return the requests that ended until now."""
        finished = self.advance(now)
        self._active.discard(request)
        return finished

    def _serve(self, until: float, count: float) -> None:
        self.request_seconds += (until - self._now) * len(self._active)
        self._now, self._count = until, count

    def _step_s(self) -> float:
        return self._model.step_s + self._model.step_s_per_request * (len(self._active) - 1)
