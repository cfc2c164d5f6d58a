"""A conversation drives one engine through one episode; the episode does not see whether tokens or messages flow."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from finqa_cli.contracts import (
    ChatCodec,
    ChatEngine,
    Engine,
    PlayedTurn,
    ReplyRole,
    TokenEngine,
    uncounted,
)
from finqa_cli.errors import ConfigError, EngineError, FinqaError
from finqa_cli.extend.plugin_calls import describe_failure
from finqa_cli.rollout.seeds import derive
from finqa_cli.types import AssistantTurn, ChatRequest, GenerateRequest, Message, Observation, Prompt, Sampling

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One assistant turn with the token record behind it (empty for chat engines), of which see `Turn`.

    `full` means: no room was left.
    """

    turn: AssistantTurn
    prompt_ids: tuple[int, ...] = ()
    restarts: bool = False
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop: str = "stop"
    policy_version: int = 0
    full: bool = False


class TokenConversation:
    """Token in, token out: what was sampled is what the next prompt continues, never a re-encoding of it.

    Where the chat template rewrites earlier turns, the next prompt is what it renders: appended to what stands already
    as long as it begins with that, otherwise a sequence of its own.
    """

    def __init__(self, engine: TokenEngine, codec: ChatCodec, prompt: Prompt, *, key: str, sampling: Sampling) -> None:
        _refuse_images(prompt.messages)
        self._engine = engine
        self._codec = codec
        self._key = key
        self._sampling = replace(sampling, stop_ids=codec.stop_ids)
        self._history: tuple[int, ...] = ()
        self._pending: tuple[int, ...] = codec.opening(prompt)
        self._restarts = False
        self._turn = 0
        self._sampled: tuple[int, ...] = ()
        self._stopped = True
        self._prompt = prompt
        self._played: list[PlayedTurn] = []

    async def respond(self) -> Reply:
        """Samples one completion; `full` when the context has no room for another token."""
        prompt_ids, self._pending = self._pending, ()
        token_ids = self._history + prompt_ids
        if len(token_ids) >= self._engine.max_context:
            return Reply(turn=AssistantTurn(text=""), full=True)
        sampling = replace(self._sampling, seed=derive(self._sampling.seed, "turn", self._turn))
        request = GenerateRequest(key=f"{self._key}#{self._turn:04d}", token_ids=token_ids, sampling=sampling)
        with uncounted.get()():  # how long it waits is the engine's load, how long it may be is limited in tokens
            completion = await generate_checked(self._engine.generate(request), self._engine)
        parse = self._codec.parse_calls if self._prompt.several_calls else self._codec.parse
        self._turn += 1
        self._history = token_ids + completion.token_ids
        self._sampled = completion.token_ids
        self._stopped = completion.stop == "stop"
        return Reply(
            turn=parse(completion.token_ids),
            prompt_ids=prompt_ids,
            restarts=self._restarts,
            completion_ids=completion.token_ids,
            logprobs=completion.logprobs,
            stop=completion.stop,
            policy_version=completion.policy_version,
        )

    def observe(self, *replies: Observation, tools: Sequence[str] | None) -> None:
        """Encodes the replies to a turn as the next prompt ids.

        Args:
            replies: One to each call of the turn, or the one to a turn without a call.
            tools: Names of the tools that they are of, empty where the call could not be read; None: it is the user's.

        Raises:
            ConfigError: There is an image among them.
        """
        _refuse_images(replies)
        texts = [reply.text for reply in replies]
        role: ReplyRole = "user" if tools is None else "tool"
        if not self._codec.rewrites(role):
            if tools is None:
                self._pending = self._codec.user_reply(texts[0], stopped=self._stopped)
            elif len(texts) == 1:
                self._pending = self._codec.tool_reply(texts[0], stopped=self._stopped)
            else:
                self._pending = self._codec.tool_replies(texts, stopped=self._stopped)
            return
        played = PlayedTurn(
            completion_ids=self._sampled,
            stopped=self._stopped,
            reply=texts[0],
            role=role,
            further_replies=tuple(texts[1:]),
        )
        self._played.append(played)
        rendered = self._codec.history(self._prompt, self._played)
        self._restarts = rendered[: len(self._history)] != self._history
        if self._restarts:
            self._history = ()
        self._pending = rendered[len(self._history) :]


class ChatConversation:
    """Messages in, messages out, for engines without token ids."""

    def __init__(
        self,
        engine: ChatEngine,
        prompt: Prompt,
        *,
        key: str,
        sampling: Sampling,
        task: str = "",
        takes_text: bool = False,
    ) -> None:
        self._engine = engine
        self._task = task
        self._takes_text = takes_text
        self._prompt = prompt
        self._key = key
        self._sampling = sampling
        self._messages = prompt.messages
        self._turn = 0

    async def respond(self) -> Reply:
        """Asks the engine with the whole history; `full` when the model's context has no room for a reply."""
        request = ChatRequest(
            key=f"{self._key}#{self._turn:04d}",
            messages=self._messages,
            tools=self._prompt.tools,
            sampling=self._sampling,
            task=self._task,
            several_calls=self._prompt.several_calls,
            takes_text=self._takes_text,
        )
        turn = await generate_checked(self._engine.respond(request), self._engine)
        if turn.stop == "full":
            return Reply(turn=turn, full=True)
        self._turn += 1
        said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call, further_calls=turn.further_calls)
        self._messages = (*self._messages, said)
        return Reply(turn=turn, stop=turn.stop)

    def observe(self, *replies: Observation, tools: Sequence[str] | None) -> None:
        """Appends the replies, images included; see `TokenConversation.observe`."""
        role: ReplyRole = "user" if tools is None else "tool"
        self._messages = (
            *self._messages,
            *(
                Message(role=role, content=reply.text, name=tool, images=reply.images)
                for reply, tool in zip(replies, [""] if tools is None else tools, strict=True)
            ),
        )


def _refuse_images(contents: Sequence[Message | Observation]) -> None:
    """Refuse what a codec would leave out.

    Raises:
        ConfigError: One of them has an image.
    """
    if any(each.images for each in contents):
        raise ConfigError(
            "The environment shows images, but token engines support text only.",
            remedy="--engine openai, with the URL of a model that supports images",
        )


async def generate_checked(pending: Awaitable[Result], engine: Engine) -> Result:
    """Await a call to the engine; an exception that its contract does not know is a fault of this episode alone.

    Raises:
        EngineError: The engine raised something else than a `FinqaError`.
    """
    try:
        return await pending
    except FinqaError:
        raise
    except Exception as error:
        raise EngineError(f"{type(engine).__name__} raised {describe_failure(error, type(engine))}") from error


Conversation = TokenConversation | ChatConversation
"""One episode's side of an engine."""
