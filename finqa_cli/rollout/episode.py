"""One episode from the first prompt to the rewards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from finqa_cli.contracts import uncounted
from finqa_cli.errors import EngineError, EnvironmentFault, EpisodeError, SandboxError
from finqa_cli.rollout.conversation import Conversation, Reply
from finqa_cli.rollout.recovery import RecoveringSession
from finqa_cli.types import AssistantTurn, Observation, Prompt, Rewards, Status, Step, Turn
from finqa_cli.types.token_use import TokenUse

TurnListener = Callable[[Turn], None]
Result = TypeVar("Result")

MOST_CALLS = 16
"""Most calls of one turn in a session that supports several; a turn with more is answered with an error."""

LONGEST_CALL_S = 120.0
"""Seconds for which a call to the environment may continue after it began, even if the episode's time limit passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits at which the policy's own actions end an episode.

    Attributes:
        max_turns: Most assistant turns.
        max_parse_errors: Most turns in a row without a readable tool call.
        seconds: Wall-clock seconds of the whole episode; 0: no limit. The time for recovery from faults, for
            completions of token engines, and for a chat engine's waits (such as rate limits) does not count.
        tokens: Prompt and sampled tokens after which no further turn begins; None: no limit. An episode passes it by
            one turn at most.
        cost_usd: The same for the cost in US dollars.
    """

    max_turns: int = 20
    max_parse_errors: int = 3
    seconds: float = 0.0
    tokens: int | None = None
    cost_usd: float | None = None

    def reached(self, spent: Callable[[], TokenUse | None]) -> str:
        """Return which limit of tokens or cost an episode has reached; empty if none."""
        if (self.tokens is None and self.cost_usd is None) or (use := spent()) is None:
            return ""
        if self.tokens is not None and use.tokens >= self.tokens:
            return f"{use.tokens:,} tokens of --max-episode-tokens {self.tokens:,} are used"
        if self.cost_usd is not None and use.cost_usd is not None and use.cost_usd >= self.cost_usd:
            return f"${use.cost_usd:.4g} of --max-episode-cost ${self.cost_usd:g} is spent"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of an episode without a fault: its status and rewards."""

    status: Status
    rewards: Rewards
    error: str = ""


class EpisodeClock:
    """The time limit of one episode. It stands still during recovery from faults, which the policy does not cause.

    It also stands still during completions of token engines. Their duration depends on the load of the engine, because
    requests queue inside servers, which do not report it. The policy decides only the length of a completion, which is
    limited in tokens. An engine that hangs becomes a fault by the timeout of its own requests.

    The limit does not cut a call to the sandbox: only when the call ends is it known whether the code of the policy or
    a frozen sandbox was slow, and a fault must not be scored.

    Attributes:
        over: The limit has ended the episode.
    """

    def __init__(self, seconds: float) -> None:
        """Limit an episode to `seconds` seconds; 0: no limit."""
        self._seconds = seconds
        self._scope: asyncio.Timeout | None = None
        self._stopped_s = 0.0
        self.over = False

    async def limit(self, playing: Awaitable[Result]) -> Result:
        """Await a call under the limit.

        Raises:
            TimeoutError: The limit was reached, or the call raised a TimeoutError of its own; see `over`.
        """
        scope = asyncio.timeout(self._seconds or None)
        token = uncounted.set(self.stopped)
        try:
            async with scope:
                self._scope = scope
                return await playing
        finally:
            uncounted.reset(token)
            self._scope = None
            self.over = scope.expired()

    def stopped(self) -> AbstractContextManager[None]:
        """Run a block whose time does not count."""
        return self._uncut(None, counted=False)

    def patient(self) -> AbstractContextManager[None]:
        """Run a block that the limit cuts only at its end, or after `LONGEST_CALL_S`.

        The time of a block that raises a fault does not count.
        """
        return self._uncut(LONGEST_CALL_S, counted=True)

    @contextmanager
    def _uncut(self, seconds: float | None, *, counted: bool) -> Iterator[None]:
        scope = self._scope
        began = asyncio.get_running_loop().time()
        due = None if scope is None else scope.when()
        if scope is None or due is None or due <= began:  # no limit, or it has passed and is about to cut
            yield
            return
        stopped_s = self._stopped_s
        if (meanwhile := None if seconds is None else max(due, began + seconds)) != due:
            scope.reschedule(meanwhile)
        try:
            yield
        except EpisodeError:
            counted = False
            raise
        finally:
            if not counted:
                self._stopped_s = stopped_s + asyncio.get_running_loop().time() - began
            if not scope.expired():
                after = due + self._stopped_s - stopped_s  # a call may itself contain blocks that do not count
                if after != scope.when():
                    scope.reschedule(after)


async def play_episode(
    session: RecoveringSession,
    conversation: Conversation,
    limits: Limits,
    clock: EpisodeClock,
    listener: TurnListener,
    spent: Callable[[], TokenUse | None] = lambda: None,
) -> Ending:
    """Play until the environment reports done or a limit is reached, then grade.

    The policy's own mistakes (an unreadable call, a wrong argument, no answer) get a reply, and the episode continues
    and is graded. Each finished turn is passed to `listener` at once. `spent` returns what the episode has used so far.

    Raises:
        EpisodeError: A fault of sandbox, engine or environment without recovery; there are no rewards then.
    """
    try:
        status, error = await clock.limit(_play_turns(session, conversation, limits, listener, spent))
    except TimeoutError:
        if not clock.over:
            raise
        status, error = Status.TIMEOUT, f"no response within {limits.seconds:g} s"
    return Ending(status=status, rewards=await session.grade(), error=error)


def fault_status(fault: EpisodeError) -> Status:
    """Return the status of the boundary that a fault is attributed to."""
    if isinstance(fault, SandboxError):
        return Status.SANDBOX_ERROR
    if isinstance(fault, EngineError):
        return Status.ENGINE_ERROR
    assert isinstance(fault, EnvironmentFault), type(fault)
    return Status.ENVIRONMENT_ERROR


async def _play_turns(
    session: RecoveringSession,
    conversation: Conversation,
    limits: Limits,
    listener: TurnListener,
    spent: Callable[[], TokenUse | None],
) -> tuple[Status, str]:
    parse_errors = 0
    for _ in range(limits.max_turns):
        started = time.perf_counter()
        reply = await conversation.respond()
        if reply.full:
            return Status.MAX_TOKENS, "the context is full"
        as_text = session.takes(reply.turn) == "text"
        if as_text:
            reply = replace(reply, turn=AssistantTurn(text=reply.turn.text))  # a call in it is only text
        elif surplus := _surplus(reply.turn, session.prompt()):
            reply = replace(reply, turn=AssistantTurn(text=reply.turn.text, parse_error=surplus))
        observations = await _answer(session, reply, as_text=as_text)
        listener(_turn(reply, observations, time.perf_counter() - started))
        if observations[-1].done:
            return Status.COMPLETED, ""
        if reached := limits.reached(spent):
            return Status.MAX_TOKENS, reached
        calls = reply.turn.calls
        readable = as_text or bool(calls)
        parse_errors = 0 if readable else parse_errors + 1
        if parse_errors >= limits.max_parse_errors:
            return Status.PARSE_ERROR, f"{parse_errors} turns in a row without a readable tool call"
        tools = None if as_text else [call.name for call in calls] or [""]
        conversation.observe(*observations, tools=tools)
    return Status.MAX_TURNS, f"no response within {limits.max_turns} turns"


def _surplus(turn: AssistantTurn, prompt: Prompt) -> str:
    """Return a message for the model if a turn has too many calls; empty otherwise."""
    allowed = MOST_CALLS if prompt.several_calls else 1
    if len(turn.calls) <= allowed:
        return ""
    wanted = f"Make at most {allowed} tool calls" if prompt.several_calls else "Make exactly one tool call"
    return f"{len(turn.calls)} tool calls found. {wanted} per turn."


async def _answer(session: RecoveringSession, reply: Reply, *, as_text: bool) -> list[Observation]:
    """Return the reply to each call, up to the call that ends the episode. Other turns get one reply."""
    if as_text:
        return [await session.answer(reply.turn.text, reply.turn)]
    observations: list[Observation] = []
    for place, call in enumerate(reply.turn.calls):
        observations.append(await session.answer(call, None if place else reply.turn))
        if observations[-1].done:
            break
    if observations:
        return observations
    cut = " The reply was cut at the token limit." if reply.stop == "length" else ""
    return [Observation(text=f"Error: {reply.turn.parse_error}{cut}", is_error=True)]


def _turn(reply: Reply, observations: Sequence[Observation], seconds: float) -> Turn:
    further = zip_longest(reply.turn.further_calls, observations[1:])
    return Turn(
        prompt_ids=reply.prompt_ids,
        restarts=reply.restarts,
        completion_ids=reply.completion_ids,
        logprobs=reply.logprobs,
        stop=reply.stop,
        policy_version=reply.policy_version,
        seconds=seconds,
        text=reply.turn.text,
        words=reply.turn.words,
        tool_call=reply.turn.tool_call,
        parse_error=reply.turn.parse_error,
        observation=observations[0],
        further_steps=tuple(Step(call=call, observation=observation) for call, observation in further),
    )
