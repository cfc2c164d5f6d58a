"""The controller's engine in a rollout worker: requests travel with the reports, answers with the deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from finqa_cli.contracts import ChatEngine, uncounted
from finqa_cli.errors import EngineError
from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest
from finqa_ray.workers.worker_messages import Answer, Ask, Pause, PoolEvent, Report, Withdraw

MOST_EPISODES = 16_384
"""Most episodes whose usage is kept: far more than are live at once."""


class ReportQueue:
    """Reports that wait until the controller collects them.

    Attributes:
        turned: A turn was generated since the last `take`.
        answered: Numbers of the replicas that answered a direct request since the last `take`.
    """

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._news = asyncio.Event()
        self.turned = False
        self.answered: set[int] = set()

    def add(self, report: Report) -> None:
        """Add a report."""
        self._reports.append(report)
        self._news.set()

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Add an event of the pool. It is a `PoolListener`."""
        self.add(PoolEvent(name=name, fields=dict(fields)))

    async def wait(self, seconds: float) -> bool:
        """Wait until there is a report, but at most `seconds`; return whether there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        return self._news.is_set()

    def take(self) -> tuple[tuple[Report, ...], bool, frozenset[int]]:
        """Return the reports, `turned` and `answered`, and reset all three."""
        taken = tuple(self._reports), self.turned, frozenset(self.answered)
        self._reports, self.turned, self.answered = [], False, set()
        self._news.clear()
        return taken


class _Waiting:
    """A request that waits for its answer. While the engine reports a pause, the episode's clock stands still."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._uncounted = uncounted.get()
        self._paused = ExitStack()

    def pause(self, begins: bool) -> None:
        self._paused.close()
        if begins:
            self._paused.enter_context(self._uncounted())


class Relay:
    """Sends requests to the controller's engine with the reports, and passes the delivered answers to them."""

    def __init__(self, queue: ReportQueue) -> None:
        self._queue = queue
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._usage: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    async def ask(
        self, request: GenerateRequest | ChatRequest, *, failed: int | None = None
    ) -> Completion | AssistantTurn:
        """Send a request and wait for its answer. Cancelling the call withdraws the request.

        Args:
            request: The request.
            failed: Number of the replica that failed on a direct try of this request; None: there was no direct try.

        Raises:
            FinqaError: The engine raised it.
        """
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
        self._queue.add(Ask(number=number, request=request, failed=failed))
        try:
            answer = await waiting.answer
        finally:
            waiting.pause(begins=False)
            if self._waiting.pop(number, None) is not None:
                self._queue.add(Withdraw(number=number))
        if answer.usage:
            self._note_usage(request.key.partition("#")[0], answer.usage)
        if answer.result is None:
            raise answer.error or EngineError("The engine gave no answer.")
        return answer.result

    def answer(self, answer: Answer) -> None:
        """Pass an answer to its request; ignore it if the request was withdrawn."""
        if (waiting := self._waiting.pop(answer.number, None)) is not None and not waiting.answer.done():
            waiting.answer.set_result(answer)

    def pause(self, pause: Pause) -> None:
        """Stop the clock of a request's episode, or let it run again."""
        if (waiting := self._waiting.get(pause.number)) is not None:
            waiting.pause(pause.begins)

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode had used at its last answer."""
        return self._usage.get(episode, {})

    def _note_usage(self, episode: str, usage: Mapping[str, Any]) -> None:
        self._usage[episode] = usage
        self._usage.move_to_end(episode)
        if len(self._usage) > MOST_EPISODES:
            self._usage.popitem(last=False)


class RelayedChatEngine(ChatEngine):
    """The controller's chat engine."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def start(self) -> None:
        """Do nothing: the controller has started the engine."""

    async def close(self) -> None:
        """Do nothing: the controller closes the engine."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """See `ChatEngine.respond`."""
        turn = await self._relay.ask(request)
        assert isinstance(turn, AssistantTurn)
        return turn

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return the usage that the controller's engine reports."""
        return self._relay.usage(episode)
