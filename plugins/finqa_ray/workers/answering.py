"""Answers of the controller's engine to the requests of rollout workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from finqa_cli.contracts import ChatEngine, TokenEngine, uncounted
from finqa_cli.errors import FinqaError
from finqa_cli.extend.plugin_calls import guarded
from finqa_cli.types import AssistantTurn, Completion, GenerateRequest
from finqa_ray.workers.worker_messages import Answer, Ask, Pause, portable

log = structlog.get_logger(__name__)


async def answer_for(engine: TokenEngine | ChatEngine, ask: Ask, send: Callable[[Pause], None]) -> Answer:
    """Return the engine's answer to a request of a worker. Call it in its own task, because it sets `uncounted`.

    Args:
        engine: The engine, started.
        ask: The request.
        send: Called when the engine begins, and ends, a wait in which the episode's clock stands still.
    """

    @contextmanager
    def paused() -> Iterator[None]:
        send(Pause(number=ask.number, begins=True))
        try:
            yield
        finally:
            send(Pause(number=ask.number, begins=False))

    request = ask.request
    result: Completion | AssistantTurn | None = None
    failure: FinqaError | None = None
    try:
        if isinstance(request, GenerateRequest):  # the worker stops the clock for the whole request
            assert isinstance(engine, TokenEngine)
            result = await guarded(engine, "engine").generate(request)
        else:
            assert isinstance(engine, ChatEngine)
            uncounted.set(paused)
            result = await guarded(engine, "engine").respond(request)
    except FinqaError as error:
        failure = portable(error)
    usage = _usage(engine, request.key.partition("#")[0])
    return Answer(number=ask.number, result=result, error=failure, usage=usage)


def _usage(engine: TokenEngine | ChatEngine, episode: str) -> Mapping[str, Any]:
    try:
        return dict(engine.usage(episode))
    except Exception as error:  # the episode is valid without these figures
        # Log: An engine could not report the tokens of an episode to a rollout worker.
        log.info("the engine's usage is ignored", reason=str(error))
        return {}
