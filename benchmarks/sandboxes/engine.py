"""The simulated engine: answers when the latency model says so, with the calls of the simulated policy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from benchmarks.sandboxes.policy import next_tool_call
from benchmarks.scale.engine_latency import LatencyModel, SharedDecoder
from finqa_cli.contracts import ChatEngine
from finqa_cli.types import AssistantTurn, ChatRequest


class SimulatedEngine(ChatEngine):
    """Simulates a model on GPUs of its own: it is never late, however busy this process is.

    Attributes:
        cpu_s: What the simulation itself has cost this process, to be taken off the orchestrator's account.
        turns: How many it has answered.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._decoder: SharedDecoder[asyncio.Future[None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.cpu_s = 0.0
        self.turns = 0

    async def start(self) -> None:
        """Nothing to load."""
        self._decoder = SharedDecoder(self._model, asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Stops its clock."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def request_seconds(self) -> float:
        """Seconds of service, summed over the requests."""
        return self._running.request_seconds

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """The policy's next turn, once it is decoded."""
        seed = request.sampling.seed
        turn = sum(message.role == "assistant" for message in request.messages)
        await self._decode(self._model.steps(seed, turn))
        with self._counted():
            call = next_tool_call(request.messages, seed)
            payload = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
            self.turns += 1
            return AssistantTurn(text=f"<tool_call>\n{payload}\n</tool_call>", tool_call=call)

    async def _decode(self, steps: int) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        with self._counted():
            self._finish(self._running.add(place, steps, loop.time()))
        try:
            await place
        finally:
            if place.cancelled():
                with self._counted():
                    self._finish(self._running.cancel(place, loop.time()))

    def _finish(self, places: Iterable[asyncio.Future[None]]) -> None:
        for place in places:
            if not place.done():
                place.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        due = self._running.due()
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        with self._counted():
            self._finish(self._running.advance(asyncio.get_running_loop().time()))

    @property
    def _running(self) -> SharedDecoder[asyncio.Future[None]]:
        assert self._decoder is not None, "the engine is not started"
        return self._decoder

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self.cpu_s += time.thread_time() - began
