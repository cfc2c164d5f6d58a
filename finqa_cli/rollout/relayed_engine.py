"""In a rollout worker: the controller's engine. Requests and answers pass with the reports and deliveries."""

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
from finqa_cli.rollout.worker_messages import Answer, Ask, Pause, PoolEvent, Report, Withdraw
from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest

MOST_EPISODES = 16_384
"""Episodes whose usage is kept; more than are live at once by far."""


class ReportQueue:
    """Reports that wait to be collected."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._news = asyncio.Event()
        self.turned = False
        self.answered: set[int] = set()

    def add(self, report: Report) -> None:
        """Add one."""
        self._reports.append(report)
        self._news.set()

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Add an event of the pool; a `PoolListener`."""
        self.add(PoolEvent(name=name, fields=dict(fields)))

    async def wait(self, seconds: float) -> bool:
        """Wait until there is a report, or for some seconds; whether there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        return self._news.is_set()

    def take(self) -> tuple[tuple[Report, ...], bool, frozenset[int]]:
        """Return and forget all reports, whether a turn was generated, and the replicas that answered themselves."""
        taken = tuple(self._reports), self.turned, frozenset(self.answered)
        self._reports, self.turned, self.answered = [], False, set()
        self._news.clear()
        return taken


class _Waiting:
    """A request that waits for its answer. The clock of its episode stands still while the engine reports it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._uncounted = uncounted.get()
        self._paused = ExitStack()

    def pause(self, begins: bool) -> None:
        self._paused.close()
        if begins:
            self._paused.enter_context(self._uncounted())


class Relay:
    """Sends requests with the reports, and gives each the answer that is delivered."""

    def __init__(self, queue: ReportQueue) -> None:
        self._queue = queue
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._usage: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    async def ask(
        self, request: GenerateRequest | ChatRequest, *, failed: int | None = None
    ) -> Completion | AssistantTurn:
        """Wait for the answer to a request. Cancellation withdraws it.

        Args:
            request: What is asked for.
            failed: The replica that was asked for it in vain.

        Raises:
            FinqaError: What the engine raised.
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
        """Give an answer to its request; one that was withdrawn is forgotten."""
        if (waiting := self._waiting.pop(answer.number, None)) is not None and not waiting.answer.done():
            waiting.answer.set_result(answer)

    def pause(self, pause: Pause) -> None:
        """Stop the clock of a request's episode, or let it run again."""
        if (waiting := self._waiting.get(pause.number)) is not None:
            waiting.pause(pause.begins)

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode used until its last answer."""
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
        """Nothing: the controller has started it."""

    async def close(self) -> None:
        """Nothing: the controller closes it."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """See `ChatEngine`."""
        turn = await self._relay.ask(request)
        assert isinstance(turn, AssistantTurn)
        return turn

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What the controller's engine reports."""
        return self._relay.usage(episode)
